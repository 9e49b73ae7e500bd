"""`tokens`: named tokens for visitors of the board."""

from __future__ import annotations

import argparse
from pathlib import Path

from runs.commands.terminal.tables import Cell, Column, print_table
from runs.commands.terminal.text import print_text

__all__ = ["add_arguments", "main"]

_EPILOG = """The board accepts them with --tokens. The secret of a token is shown once: the file keeps its digest.
Revoked tokens are rejected at once, also by running boards."""
_ROLES = ("read", "note", "write")


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


def main(arguments: argparse.Namespace) -> int:
    """Add, list or revoke tokens."""
    from runs.board.tokens import TokenFile, default_tokens
    from runs.board.visitors import Role

    _check(arguments)
    file = TokenFile(arguments.tokens or default_tokens())
    if arguments.action == "add":
        role = Role[(arguments.role or "read").upper()]
        print(file.add(arguments.name, role, arguments.user or ""), flush=True)
    elif arguments.action == "revoke":
        file.revoke(arguments.name)
        print_text(f"token {arguments.name} is revoked")
    elif tokens := file.tokens():
        rows = [[Cell(one.name), Cell(one.role.word), Cell(one.user or one.name), Cell(one.created)] for one in tokens]
        print_table([Column("name", is_kept=True), Column("role"), Column("user"), Column("created")], rows)
    else:
        print_text(f"there are no tokens in {file.path}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Reject a missing or superfluous name or role."""
    if arguments.action == "list" and arguments.name:
        arguments.parser.error(f"got the name {arguments.name!r}; tokens list takes none")
    if arguments.action != "list" and not arguments.name:
        arguments.parser.error(f"tokens {arguments.action} needs the NAME of a token")
    for option in ("role", "user"):
        if arguments.action != "add" and getattr(arguments, option):
            arguments.parser.error(f"tokens {arguments.action} takes no --{option}")
