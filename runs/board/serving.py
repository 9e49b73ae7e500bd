"""The board as a server, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import functools
import logging
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sacristan.runs.board.access import Policy, check_address
from sacristan.runs.board.app import create_app
from sacristan.runs.errors import RunsError, ServerError
from sacristan.runs.stores.opening import open_store

__all__ = ["BoardServer"]

_log = logging.getLogger(__name__)

_SHUTDOWN_S = 2
# Open connections that do not all wait for answers.
_MAX_CONNECTIONS = 200
# From malloc.h of glibc: https://man7.org/linux/man-pages/man3/mallopt.3.html
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


class _YieldingProtocol(H11Protocol):
    """HTTP/1.1 that makes room for new connections by closing an old one, so silent clients cannot block others.

    It closes the one that has waited longest: idle, with an incomplete request, or else with an unread response.
    """

    _waiting_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting_since = self.loop.time()
        others = [one for one in self.connections if one is not self and isinstance(one, _YieldingProtocol)]
        if len(self.connections) < _MAX_CONNECTIONS:
            return
        if idle := [one for one in others if not one._is_asked or one.flow.write_paused]:
            longest = min(idle, key=lambda one: (one._is_asked, one._waiting_since))
            self.connections.discard(longest)
            longest.transport.abort()

    def on_response_complete(self) -> None:
        self._waiting_since = self.loop.time()
        super().on_response_complete()

    @property
    def _is_asked(self) -> bool:
        """True if a whole request has arrived and is unanswered."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body


@dataclasses.dataclass
class BoardServer:
    """The board over one or several stores, at an address.

    Attributes:
        where: The store, as `open_store` takes it; several stores by name.
        port: The port; 0 takes a free one.
        certificate: TLS certificate, as PEM; `key` is None if the same file holds it.

    Raises:
        StoreError: If no store can be read, or others could reach the board without a token.
        ServerError: If the port is taken, or the certificate cannot be read.
    """

    where: str | Mapping[str, str]
    policy: Policy = dataclasses.field(default_factory=Policy)
    port: int = 8765
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        check_address(self.policy)
        if self.policy.tokens is not None and not self.policy.tokens.tokens():
            raise ServerError(f"there are no tokens in {self.policy.tokens.path}; add one: sacristan tokens add NAME")
        for file in (self.certificate, self.key):
            if file is not None and not file.is_file():
                raise ServerError(f"there is no file {file}; give a TLS certificate and its key as PEM files")
        if self.key is not None and self.certificate is None:
            raise ServerError(f"got the key {self.key} without a certificate; add --certificate")
        self._stores = {"": self.where} if isinstance(self.where, str) else dict(self.where)
        self._check_stores()
        if not 0 <= self.port < 2**16:
            raise ServerError(f"port: got {self.port}, expected 0 to 65535")
        self._server: uvicorn.Server | None = None
        self._socket = self._listen()
        self.port = self._socket.getsockname()[1]
        is_secure = self.certificate is not None
        self.policy = dataclasses.replace(self.policy, is_secure=is_secure, cookie=f"board-{self.port}")

    def _check_stores(self) -> None:
        """Raise an error if no store can be opened; log the ones that cannot if others can."""
        with ThreadPoolExecutor() as threads:
            problems = dict(zip(self._stores, threads.map(_problem_of, self._stores.values()), strict=True))
        away = {name: problem for name, problem in problems.items() if problem is not None}
        if len(away) == len(problems):
            raise next(iter(away.values()))
        for name, problem in away.items():
            _log.warning("store %s: %s; the board shows it when it can be read", name, problem)

    def _listen(self) -> socket.socket:
        try:
            family = socket.AF_INET6 if ":" in self.policy.host else socket.AF_INET
            return socket.create_server((self.policy.host, self.port), family=family)
        except OSError as error:
            address = f"{self.policy.host}:{self.port}"
            raise ServerError(
                f"{address} cannot be listened on ({error.strerror}); take another port: --port 0"
            ) from error

    @property
    def url(self) -> str:
        """Its URL, with the token."""
        scheme = "https" if self.certificate else "http"
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.policy.host, self.policy.host)
        host = f"[{host}]" if ":" in host else host
        return f"{scheme}://{host}:{self.port}/" + (f"?token={self.policy.token}" if self.policy.token else "")

    def serve(self, *, opens_browser: bool = False, on_started: Callable[[], None] = lambda: None) -> None:
        """Answer requests until SIGINT or SIGTERM, which are raised again when the last answer is sent.

        `on_started` is called when the board is ready. A browser opens only if there is a screen. An invalid
        certificate raises ServerError.
        """
        _return_large_arrays()
        openers = {name: functools.partial(open_store, where) for name, where in self._stores.items()}
        config = uvicorn.Config(
            create_app(openers if any(openers) else openers[""], self.policy),
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            http=_YieldingProtocol,
            # Closed connections count until their requests have ended.
            limit_concurrency=2 * _MAX_CONNECTIONS,
            timeout_graceful_shutdown=_SHUTDOWN_S,
            ssl_certfile=self.certificate,
            ssl_keyfile=self.key,
        )
        try:
            config.load()
        except OSError as error:  # SSLError is one
            self.close()
            raise ServerError(f"{self.certificate} cannot be used as a TLS certificate ({error})") from error
        logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
        on_started()
        if opens_browser and _has_screen():
            threading.Thread(target=webbrowser.open, args=(self.url,), daemon=True).start()
        self._server = uvicorn.Server(config)
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """Release the port of a board that was not served."""
        self._socket.close()

    def stop(self) -> None:
        """End `serve` from another thread, after the last response."""
        if self._server is not None:
            self._server.should_exit = True


def _problem_of(where: str) -> RunsError | None:
    try:
        with open_store(where):
            return None
    except RunsError as error:
        return error


def _is_no_cancellation(entry: logging.LogRecord) -> bool:
    """Tell whether uvicorn reports something other than requests cancelled when the board ends, as they should be.

    That happens after `_SHUTDOWN_S` seconds, or at a second Ctrl-C.
    """
    error = entry.exc_info[1] if entry.exc_info else None
    text = entry.getMessage()
    return not (isinstance(error, asyncio.CancelledError) or "CancelledError" in text or text.startswith("Cancel "))


def _return_large_arrays() -> None:
    """Let glibc return freed arrays to the system; by default each thread keeps room for its largest ones."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 2**20)
        mallopt(_M_ARENA_MAX, 2)


def _has_screen() -> bool:
    """Tell whether a browser would open a window; a text browser would take over the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
