"""Commands of the board: `board`, and `tokens` for its visitors."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from sacristan.observers.record.redaction import hide_user
from sacristan.runs.commands.terminal import add_json, port, store_address, where_of
from sacristan.runs.commands.terminal.text import Cell, Column, print_json, print_table, print_text
from sacristan.runs.errors import ServerError, needing_extra

if TYPE_CHECKING:
    from sacristan.runs.board.access import NamedToken, Proxy, Role, TokenFile

_TOKEN = "SACRISTAN_BOARD_TOKEN"
_NAMED = re.compile(r"(?P<name>[a-z0-9][a-z0-9_-]{0,39})=(?P<where>.+)", re.DOTALL)
_ROLES = ("read", "note", "write")
_BOARD_EPILOG = f"""Only this machine can reach the board. Any other --host needs --token, --tokens or --proxy;
--token without a value makes a random one, and ${_TOKEN} sets one without showing it to other users of the machine."""
_TOKENS_EPILOG = """\
The board accepts them with --tokens. The secret of a token is shown once: the file keeps its digest.
Revoked tokens are rejected at once, also by running boards."""


class Board:
    """`board`: runs in the browser."""

    NO_JSON = "it is a server"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = _BOARD_EPILOG
        # This --store replaces that of all commands, as it can be repeated.
        parser._optionals.conflict_handler = "resolve"
        named = "repeat it with names, such as lab=mongodb://host/lab, for several stores"
        help = f"folder of runs, or mongodb:// URL; {named}"
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
        parser.add_argument(
            "--certificate", type=Path, metavar="FILE", help="serve over TLS, with this PEM certificate"
        )
        parser.add_argument(
            "--key", type=Path, metavar="FILE", help="private key, unless the certificate file contains it"
        )

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
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
    """Return the store, or several by name, each written `NAME=STORE`."""
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


class Token(TypedDict):
    """A token, without its secret; printed by `list`."""

    name: Annotated[str, "Its name."]
    role: Annotated[str, "`read`, `note` or `write`."]
    user: Annotated[str, "The account that its visitor records runs with."]
    created: Annotated[str, "When it was added, UTC."]


class NewToken(TypedDict):
    """A new token; printed by `add`."""

    name: Annotated[str, "Its name."]
    role: Annotated[str, "`read`, `note` or `write`."]
    user: Annotated[str, "The account that its visitor records runs with."]
    token: Annotated[str, "The secret, which is shown once."]


class RevokedToken(TypedDict):
    """A token that was revoked; printed by `revoke`."""

    revoked: Annotated[str, "Its name."]


class Tokens:
    """`tokens`: named tokens for visitors of the board."""

    JSON = list[Token] | NewToken | RevokedToken

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = _TOKENS_EPILOG
        parser.add_argument("action", choices=("add", "list", "revoke"), metavar="add|list|revoke", help="what to do")
        parser.add_argument("name", nargs="?", metavar="NAME", help="name of the token, such as that of its user")
        help = "permissions: read; note, for tags, notes and views; write, to delete runs as well (read)"
        parser.add_argument("--role", choices=_ROLES, metavar="|".join(_ROLES), help=help)
        help = "account that the visitor records runs with, for Mine (NAME)"
        parser.add_argument("--user", metavar="ACCOUNT", help=help)
        help = "file of the tokens (sacristan/tokens.json in your folder of settings)"
        parser.add_argument("--tokens", type=Path, metavar="FILE", help=help)
        add_json(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.board.access import Role, TokenFile, default_tokens

        _check_options(arguments)
        file = TokenFile(arguments.tokens or default_tokens())
        if arguments.action == "add":
            _add_token(file, Role[(arguments.role or "read").upper()], arguments)
        elif arguments.action == "revoke":
            file.revoke(arguments.name)
            if arguments.json:
                print_json(RevokedToken(revoked=arguments.name))
            else:
                print_text(f"token {arguments.name} is revoked")
        else:
            _list_tokens(file, in_json=arguments.json)
        return 0


def _list_tokens(file: TokenFile, *, in_json: bool) -> None:
    tokens = file.tokens()
    if in_json:
        print_json([_token(one) for one in tokens])
    elif tokens:
        rows = [[Cell(one.name), Cell(one.role.word), Cell(one.user or one.name), Cell(one.created)] for one in tokens]
        print_table([Column("name", is_kept=True), Column("role"), Column("user"), Column("created")], rows)
    else:
        print_text(f"there are no tokens in {file.path}")


def _token(one: NamedToken) -> Token:
    return {"name": one.name, "role": one.role.word, "user": one.user or one.name, "created": one.created}


def _check_options(arguments: argparse.Namespace) -> None:
    if arguments.action == "list" and arguments.name:
        arguments.parser.error(f"got the name {arguments.name!r}; tokens list takes none")
    if arguments.action != "list" and not arguments.name:
        arguments.parser.error(f"tokens {arguments.action} needs the NAME of a token")
    for option in ("role", "user"):
        if arguments.action != "add" and getattr(arguments, option):
            arguments.parser.error(f"tokens {arguments.action} takes no --{option}")


def _add_token(file: TokenFile, role: Role, arguments: argparse.Namespace) -> None:
    secret = file.add(arguments.name, role, arguments.user or "")
    if arguments.json:
        user = arguments.user or arguments.name
        print_json(NewToken(name=arguments.name, role=role.word, user=user, token=secret))
    else:
        print(secret, flush=True)
