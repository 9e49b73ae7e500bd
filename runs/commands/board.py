"""`board`: runs in the browser."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sacristan.observers.record.redaction import hide_user
from sacristan.runs.commands.terminal.arguments import port, store_address, where_of
from sacristan.runs.errors import ServerError, needing_extra

if TYPE_CHECKING:
    from sacristan.runs.board.access import Proxy, TokenFile

__all__ = ["NO_JSON", "add_arguments", "main"]

NO_JSON = "it is a server"

_TOKEN = "SACRISTAN_BOARD_TOKEN"
_NAMED = re.compile(r"(?P<name>[a-z0-9][a-z0-9_-]{0,39})=(?P<where>.+)", re.DOTALL)
_ROLES = ("read", "note", "write")
_EPILOG = f"""Only this machine can reach the board. Any other --host needs --token, --tokens or --proxy;
--token without a value makes a random one, and ${_TOKEN} sets one without showing it to other users of the machine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    parser._optionals.conflict_handler = "resolve"  # this --store replaces that of all commands, as it can be repeated
    help = "folder of runs, or mongodb:// URL; repeat it with names, such as lab=mongodb://host/lab, for several stores"
    parser.add_argument(
        "--store", action="append", dest="stores", type=store_address, metavar="[NAME=]WHERE", help=help
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=port, default=8765, help="port; 0 takes a free one (8765)")
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")
    parser.add_argument("--read-only", action="store_true", help="reject tags, notes and deletion")
    parser.add_argument(
        "--token", nargs="?", const="", help="token that browsers must present; without a value, a random one"
    )
    help = "accept the named tokens of `sacristan tokens`, or of another FILE"
    parser.add_argument("--tokens", nargs="?", const="", metavar="FILE", help=help)
    help = "header in which a proxy names the user; needs --proxy"
    parser.add_argument("--user-header", metavar="NAME", help=help)
    help = "address of the proxy, the only one whose --user-header is believed"
    parser.add_argument("--proxy", metavar="ADDRESS", help=help)
    help = "what users of --user-header may do: read; note, for tags, notes and views; write (read)"
    parser.add_argument("--user-role", choices=_ROLES, metavar="|".join(_ROLES), help=help)
    help = "name by which browsers know the board, behind a proxy"
    parser.add_argument("--public-name", default="", metavar="HOST", help=help)
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="serve over TLS, with this PEM certificate")
    parser.add_argument("--key", type=Path, metavar="FILE", help="private key, unless the certificate file contains it")


def main(arguments: argparse.Namespace) -> int:
    """Serve the board until Ctrl-C or SIGTERM."""
    with needing_extra("board", "the board"):
        import plotly  # noqa: F401  # whose script is served

        from sacristan.runs.board.access import Policy
        from sacristan.runs.board.serving import BoardServer

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    token = arguments.token if arguments.token is not None else os.environ.get(_TOKEN)
    policy = Policy(
        host=arguments.host,
        token=secrets.token_urlsafe(24) if token == "" else token,
        tokens=_tokens(arguments.tokens),
        proxy=_proxy(arguments),
        public_name=arguments.public_name,
        is_read_only=arguments.read_only,
    )
    where = _stores(arguments.stores or [where_of(arguments)])
    server = BoardServer(where, policy, arguments.port, arguments.certificate, arguments.key)
    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve(
            opens_browser=not arguments.no_open,
            on_started=lambda: print(f"{server.url}  (Ctrl-C stops it)", flush=True),
        )
    return 0


def _stores(texts: Sequence[str]) -> str | dict[str, str]:
    """Return the store, or several by name, each written `NAME=STORE`.

    Raises ServerError if a name is missing or used twice.
    """
    matches = [_NAMED.fullmatch(text) for text in texts]
    if matches == [None] or (len(texts) == 1 and Path(texts[0]).is_dir()):  # a folder may be named a=b
        return texts[0]
    stores: dict[str, str] = {}
    for text, match in zip(texts, matches, strict=True):
        if match is None:
            what = hide_user(text)
            raise ServerError(
                f"got the store {what!r} among several, expected NAME={what}, with a name of at most 40 lower-case "
                "letters, digits, - and _"
            )
        if match["name"] in stores:
            raise ServerError(f"got two stores of the name {match['name']!r}; give each its own")
        stores[match["name"]] = match["where"]
    return stores


def _tokens(path: str | None) -> TokenFile | None:
    from sacristan.runs.board.access import TokenFile, default_tokens

    return None if path is None else TokenFile(Path(path) if path else default_tokens())


def _proxy(arguments: argparse.Namespace) -> Proxy | None:
    from sacristan.runs.board.access import Proxy, Role

    if arguments.user_header is None and arguments.proxy is None:
        if arguments.user_role:
            raise ServerError("--user-role needs --user-header and --proxy")
        return None
    if arguments.user_header is None or arguments.proxy is None:
        raise ServerError("--user-header and --proxy belong together; give both")
    return Proxy(arguments.proxy, arguments.user_header, Role[(arguments.user_role or "read").upper()])
