"""The board: an ASGI application, its page that lists the runs of all stores together, and its server."""

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
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from sacristan.runs.board import (
    artifacts_page,
    charts,
    compare_page,
    contents,
    media_page,
    reports_page,
    run_page,
    runs_page,
    selected_runs,
    sweep_page,
)
from sacristan.runs.board.access import Policy, check_address
from sacristan.runs.board.rendering import asset, render, run_url, static_url
from sacristan.runs.board.security import AccessControl
from sacristan.runs.board.views import RunsView, root
from sacristan.runs.board.visits import Board, board_of, field_of, look_again_s, watched
from sacristan.runs.errors import FilterError, RunsError, ServerError
from sacristan.runs.query import full_name, short_name, split_names
from sacristan.runs.query.filters import in_order
from sacristan.runs.stores import Run, Store
from sacristan.runs.stores.opening import open_store
from sacristan.runs.stores.pool import StorePool

_log = logging.getLogger(__name__)

_COLUMNS = ("name", "status", "start", "duration", "result", "tags")
_NEEDED = ("status", "tags")
# Seconds that the page waits for each store, all at the same time.
_PATIENCE_S = 4.0
# A page looks again after so long at most, even if a store that was away made it wait.
_LOOK_S = 10.0
# Runs of each store that are read to show a page, and where counting ends.
_MAX_READ, _COUNTED = 1_000, 1_000
_PAGES = (
    runs_page,
    selected_runs,
    charts,
    run_page,
    compare_page,
    sweep_page,
    artifacts_page,
    media_page,
    contents,
    reports_page,
)
ROUTES = [route for module in _PAGES for route in module.ROUTES]
Opener = Callable[[], Store]


def create_app(stores: Opener | Mapping[str, Opener], policy: Policy | None = None) -> Starlette:
    """Create the ASGI application of the board; each thread calls the opener of a store for itself."""
    policy = policy or Policy()
    named: Mapping[str, Opener] = stores if isinstance(stores, Mapping) else {"": stores}
    names = tuple(filter(None, named))
    boards = {name: Board(StorePool(opener), name, names) for name, opener in named.items()}

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for board in boards.values():
            board.sweeps.close()
            board.pool.close()

    pages: list[BaseRoute] = list(ROUTES)
    if names:
        pages = [Mount("/s/{store}", routes=ROUTES), Route("/", _first_store), Route("/all", _all)]
    static = [Route(path, _static_file) for path in ("/static/{name}", "/static/{version}/{name}")]
    routes = [*static, Route("/favicon.ico", _icon), *pages]
    middleware = [
        Middleware(AccessControl, policy=policy),
        Middleware(GZipMiddleware, minimum_size=2048, compresslevel=4),
    ]
    app = Starlette(routes=routes, middleware=middleware, lifespan=lifespan, exception_handlers={404: _not_found})
    app.state.boards = boards
    return app


async def _first_store(request: Request) -> Response:
    return RedirectResponse(f"{next(iter(request.app.state.boards.values())).root}/")


async def _static_file(request: Request) -> Response:
    # Without a page around it, which names the stores: strangers may ask, too.
    return await asset(request) or PlainTextResponse("there is no such file\n", 404)


async def _icon(request: Request) -> Response:
    # Browsers ask for it beside what names no icon: the login, files, refusals.
    return RedirectResponse(static_url("icon.svg"))


async def _not_found(request: Request, error: Exception) -> Response:
    try:
        board = board_of(request)
    except HTTPException:
        board = next(iter(request.app.state.boards.values()))
        root.set(board.root)
        board = dataclasses.replace(board, visitor=request.scope["visitor"])
    return HTMLResponse(
        render("problem.html", board=board, path="", problem=f"there is no page {request.url.path}", discarded=""), 404
    )


# ---------------------------------------------------------------------- the runs of all stores


@dataclasses.dataclass(frozen=True)
class _AllView(RunsView):
    """State of the page; the column form joins their names with commas."""

    PATH: ClassVar[str] = "/all"
    LAST_PAGE: ClassVar[int] = _MAX_READ // RunsView.SIZE


@dataclasses.dataclass(frozen=True)
class _Row:
    store: str
    id: str
    url: str
    cells: Sequence[Any]
    key: Any


@dataclasses.dataclass(frozen=True)
class _Matches:
    """The first runs of one or all stores, the number of matching runs, and why stores do not answer."""

    rows: Sequence[_Row] = ()
    total: int = 0
    is_more: bool = False
    problems: Mapping[str, RunsError] = dataclasses.field(default_factory=dict)


async def _all(request: Request) -> Response:
    """Answer with a page of the runs of all stores; name each store that does not answer, with the reason."""
    started = time.perf_counter()
    boards: Mapping[str, Board] = request.app.state.boards
    root.set("")
    view = _view_of(request)
    columns = view.column or _COLUMNS
    try:
        view.tree  # noqa: B018  # a malformed condition is no fault of a store
        matches = _together(await asyncio.gather(*(_ask(board, view, columns) for board in boards.values())), view)
    except FilterError as error:
        matches = _Matches(problems={"": error})
    wrong = [problem for problem in matches.problems.values() if isinstance(problem, FilterError)]
    page = render(
        "all_stores.html",
        board=dataclasses.replace(next(iter(boards.values())), name="", visitor=request.scope["visitor"]),
        path=view.PATH,
        view=view,
        columns=columns,
        rows=matches.rows[view.offset : view.offset + view.SIZE],
        total=matches.total,
        has_more=matches.total > view.offset + view.SIZE and view.page < view.LAST_PAGE,
        is_more=matches.is_more,
        problems={name: str(problem) for name, problem in matches.problems.items()},
        is_followed=not wrong,
    )
    if wrong and not matches.rows:
        return HTMLResponse(page, 400)
    return watched(request, page, min(look_again_s(started), _LOOK_S))


def _together(answers: Sequence[_Matches], view: _AllView) -> _Matches:
    rows = [row for one in answers for row in one.rows]
    return _Matches(
        in_order(rows, lambda row: row.key, descending=view.sort.startswith("-")),
        sum(one.total for one in answers),
        any(one.is_more for one in answers),
        {name: problem for one in answers for name, problem in one.problems.items()},
    )


def _view_of(request: Request) -> _AllView:
    query = request.query_params
    names = split_names(",".join(query.getlist("column")))
    columns = tuple(dict.fromkeys(short_name(full_name(name)) for name in names))
    view = dataclasses.replace(_AllView.of(query), column=columns)
    return dataclasses.replace(view.adding(query.get("add", "")), page=min(view.page, view.LAST_PAGE))


async def _ask(board: Board, view: _AllView, columns: Sequence[str]) -> _Matches:
    """Return the runs of one store that may be on the page, or why it returns none."""
    try:
        return await board.pool.ask_within(lambda store: _found_in(store, board, view, columns), _PATIENCE_S)
    except RunsError as error:
        return _Matches(problems={board.name: error})


def _found_in(store: Store, board: Board, view: _AllView, columns: Sequence[str]) -> _Matches:
    most = view.offset + view.SIZE
    runs = [run.listed() for run in store.find(view.tree, view.sort, most, [*columns, *_NEEDED])]
    by = full_name(view.sort_name)
    rows = [
        _Row(board.name, run.id, board.root + run_url(run.id), [field_of(run, name) for name in columns], _key(run, by))
        for run in runs
    ]
    if len(runs) < most:
        return _Matches(rows, len(runs))
    limit = max(_COUNTED, most + 1)
    total = store.count(view.tree, limit)
    return _Matches(rows, total, total >= limit)


def _key(run: Run, by: str) -> Any:
    """Return the value that sorts a run among those of other stores; numeric ids sort as numbers."""
    if by == "_id":
        return int(run.id) if run.id.isdecimal() else run.id
    return field_of(run, by)


# ---------------------------------------------------------------------- the server

_SHUTDOWN_S = 2
# Open connections that do not all wait for answers.
_MAX_CONNECTIONS = 200
# From malloc.h of glibc: https://man7.org/linux/man-pages/man3/mallopt.3.html
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


class _YieldingProtocol(H11Protocol):
    """HTTP/1.1 that closes the longest waiting connection, so that silent clients cannot block others."""

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
    """Tell whether uvicorn reports something other than requests cancelled at the end of the board."""
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
