"""`tokens`: named tokens for visitors of the board."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from sacristan.runs.commands.terminal.arguments import add_json
from sacristan.runs.commands.terminal.tables import Cell, Column, print_table
from sacristan.runs.commands.terminal.text import print_json, print_text

if TYPE_CHECKING:
    from sacristan.runs.board.access import NamedToken, Role, TokenFile

__all__ = ["JSON", "add_arguments", "main"]

_EPILOG = """The board accepts them with --tokens. The secret of a token is shown once: the file keeps its digest.
Revoked tokens are rejected at once, also by running boards."""
_ROLES = ("read", "note", "write")


class Token(TypedDict):
    """A token, without its secret; printed by `list`.

    Attributes:
        name: Its name.
        role: `read`, `note` or `write`.
        user: The account that its visitor records runs with.
        created: When it was added, UTC.
    """

    name: str
    role: str
    user: str
    created: str


class NewToken(TypedDict):
    """A new token; printed by `add`.

    Attributes:
        name: Its name.
        role: `read`, `note` or `write`.
        user: The account that its visitor records runs with.
        token: The secret, which is shown once.
    """

    name: str
    role: str
    user: str
    token: str


class RevokedToken(TypedDict):
    """A token that was revoked; printed by `revoke`.

    Attributes:
        revoked: Its name.
    """

    revoked: str


JSON = list[Token] | NewToken | RevokedToken


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    parser.add_argument("action", choices=("add", "list", "revoke"), metavar="add|list|revoke", help="what to do")
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the token, such as that of its user")
    help = "permissions: read; note, for tags, notes and views; write, to delete runs as well (read)"
    parser.add_argument("--role", choices=_ROLES, metavar="|".join(_ROLES), help=help)
    help = "account that the visitor records runs with, for Mine (NAME)"
    parser.add_argument("--user", metavar="ACCOUNT", help=help)
    help = "file of the tokens (sacristan/tokens.json in your folder of settings)"
    parser.add_argument("--tokens", type=Path, metavar="FILE", help=help)
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Add, list or revoke tokens."""
    from sacristan.runs.board.access import Role, TokenFile, default_tokens

    _check(arguments)
    file = TokenFile(arguments.tokens or default_tokens())
    if arguments.action == "add":
        _add(file, Role[(arguments.role or "read").upper()], arguments)
    elif arguments.action == "revoke":
        file.revoke(arguments.name)
        if arguments.json:
            print_json(RevokedToken(revoked=arguments.name))
        else:
            print_text(f"token {arguments.name} is revoked")
    else:
        _list(file, in_json=arguments.json)
    return 0


def _list(file: TokenFile, *, in_json: bool) -> None:
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


def _check(arguments: argparse.Namespace) -> None:
    if arguments.action == "list" and arguments.name:
        arguments.parser.error(f"got the name {arguments.name!r}; tokens list takes none")
    if arguments.action != "list" and not arguments.name:
        arguments.parser.error(f"tokens {arguments.action} needs the NAME of a token")
    for option in ("role", "user"):
        if arguments.action != "add" and getattr(arguments, option):
            arguments.parser.error(f"tokens {arguments.action} takes no --{option}")


def _add(file: TokenFile, role: Role, arguments: argparse.Namespace) -> None:
    secret = file.add(arguments.name, role, arguments.user or "")
    if arguments.json:
        user = arguments.user or arguments.name
        print_json(NewToken(name=arguments.name, role=role.word, user=user, token=secret))
    else:
        print(secret, flush=True)
