"""`artifacts`: the files that a run made, and versions of artifacts with their aliases."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NotRequired, TypedDict

from sacristan.runs.commands.terminal.arguments import add_json, add_store, open_given
from sacristan.runs.commands.terminal.outcomes import CONTENTS, add_contents, list_or_get
from sacristan.runs.commands.terminal.text import Cell, Column, print_json, print_table, print_text
from sacristan.runs.query.texts import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sacristan.observers.artifacts.aliases import Move

__all__ = ["JSON", "add_arguments", "main"]


class AliasMove(TypedDict):
    """A move of an alias.

    Attributes:
        alias: The alias.
        version: The number of the version that it names from then on; null if it was removed.
        was: The number of the version that it named before; null if there was none.
        by: Who moved it.
        via: How the name of the user is known: `board`, `token` or `proxy`; empty for the user of a process.
        run: The uid of the run whose code moved it; null if no run did.
        time: When, in UTC.
    """

    alias: str
    version: int | None
    was: int | None
    by: str
    via: str
    run: str | None
    time: str


class ArtifactAliases(TypedDict):
    """The aliases of an artifact; printed by `alias`.

    Attributes:
        name: The artifact.
        aliases: The last move of each alias that names a version.
        moves: All moves, oldest first; with `--history`.
    """

    name: str
    aliases: list[AliasMove]
    moves: NotRequired[list[AliasMove]]


JSON = CONTENTS | ArtifactAliases


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    actions = add_contents(parser, "files that a run made, and the checkpoints that it keeps")
    about = "Give a version a name that moves, such as champion; list the names of an artifact, or remove one."
    alias = actions.add_parser("alias", help="list, move or remove names of versions that move", description=about)
    add_store(alias)
    alias.add_argument("name", metavar="NAME", help="the artifact")
    alias.add_argument("version", nargs="?", metavar="VERSION", help="such as v7, latest, or another alias")
    alias.add_argument("alias", nargs="?", metavar="ALIAS", help="name that VERSION gets, such as champion")
    alias.add_argument(
        "--was", metavar="VERSION", help="move ALIAS only if it names this one now; '' if it must be new"
    )
    alias.add_argument("--remove", metavar="ALIAS", help="remove an alias; its history is kept")
    alias.add_argument(
        "--history", action="store_true", help="list who moved which alias, when, from and to which version"
    )
    add_json(alias)


def main(arguments: argparse.Namespace) -> int:
    """List files or write them into a folder; list, move or remove aliases."""
    if arguments.action == "alias":
        return _alias(arguments)
    return list_or_get(arguments, "artifacts", lambda run: {**run.checkpoints, **run.artifacts})


def _alias(arguments: argparse.Namespace) -> int:
    name = arguments.name
    if (arguments.version is None) != (arguments.alias is None) or (arguments.version and arguments.remove):
        arguments.parser.error(f"got one word after {name}: write alias {name} VERSION ALIAS, or --remove ALIAS")
    if arguments.was is not None and not (arguments.alias or arguments.remove):
        arguments.parser.error("--was goes with a move: alias NAME VERSION ALIAS --was VERSION")
    with open_given(arguments) as store:
        moved = None
        if arguments.remove:
            moved = store.aliases.move(name, arguments.remove, None, arguments.was)
        elif arguments.alias:
            version = store.aliases.resolve(f"{name}:{arguments.version}").version
            moved = store.aliases.move(name, arguments.alias, version, arguments.was)
        else:
            store.aliases.resolve(name)
        aliases, moves = store.aliases.of(name), store.aliases.moves(name)
    if arguments.json:
        document = ArtifactAliases(name=name, aliases=[_document(move) for move in aliases.values()])
        print_json(document | {"moves": [_document(move) for move in moves]} if arguments.history else document)
    elif arguments.history:
        _print_moves(name, moves)
    elif moved is not None:
        now = "removed" if moved.version is None else f"v{moved.version}"
        print_text(f"{name}:{moved.alias} is {now}, was {_named(moved.was)}")
    else:
        _print_moves(name, list(aliases.values()))
    return 0


def _document(move: Move) -> AliasMove:
    return AliasMove(**{key: value for key, value in move.document().items() if key in AliasMove.__annotations__})  # type: ignore[typeddict-item]  # the keys are its own


def _named(version: int | None) -> str:
    return "no version" if version is None else f"v{version}"


def _print_moves(name: str, moves: Sequence[Move]) -> None:
    if not moves:
        print_text(f"{name} has no aliases; to give one: sacristan artifacts alias {name} latest champion")
        return
    rows = [
        [
            Cell(move.alias),
            Cell(_named(move.version)),
            Cell(_named(move.was)),
            Cell(move.time[:19].replace("T", " ")),
            Cell(move.by),
            Cell(MISSING if move.run is None else move.run[:12]),
        ]
        for move in moves
    ]
    titles = ("alias", "version", "before", "moved (UTC)", "by", "run")
    print_table([Column(title, is_kept=title in ("alias", "version")) for title in titles], rows)
