"""The subcommands `ls` and `get`, which `artifacts` and `sources` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from sacristan.runs.commands.terminal.arguments import add_json, add_run, add_store, open_given
from sacristan.runs.commands.terminal.tables import Cell, Column, print_table
from sacristan.runs.commands.terminal.text import print_json, print_text, print_to_stderr
from sacristan.runs.query.texts import MISSING, size_text

if TYPE_CHECKING:
    from sacristan.runs.stores.run import Content, Run

__all__ = ["CONTENTS", "Fetched", "ListedFile", "add_contents", "list_or_get"]


class ListedFile(TypedDict):
    """A file of a run; printed by `ls`.

    Attributes:
        name: Its name.
        bytes: Its size; null if the file is missing.
    """

    name: str
    bytes: int | None


class Fetched(TypedDict):
    """Files that were written; printed by `get`.

    Attributes:
        files: Paths of the files.
        refused: A sentence for each file that could not be written.
    """

    files: list[str]
    refused: list[str]


CONTENTS = list[ListedFile] | Fetched


def add_contents(parser: argparse.ArgumentParser, files: str) -> None:
    """Add the subcommands `ls` and `get`."""
    actions = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="action")
    for name, help in (("ls", f"list the {files}"), ("get", f"write the {files} into a folder")):
        action = actions.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        add_store(action)
        add_run(action)
        if name == "get":
            action.add_argument("names", nargs="*", metavar="NAME", help="names of files (all)")
            action.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write into")
            action.add_argument("--force", action="store_true", help="replace existing files")
        add_json(action)


def list_or_get(arguments: argparse.Namespace, kind: str, contents_of: Callable[[Run], Mapping[str, Content]]) -> int:
    """List the files, or write them into a folder; the exit code is 1 if a file could not be written.

    `kind` names the kind of files in a word.
    """
    return _get(arguments, contents_of) if arguments.action == "get" else _list(arguments, kind, contents_of)


def _list(arguments: argparse.Namespace, kind: str, contents_of: Callable[[Run], Mapping[str, Content]]) -> int:
    from sacristan.runs.transfer.fetching import length_of

    with open_given(arguments) as store:
        run = store.get(arguments.run)
        rows = [(name, length_of(content)) for name, content in contents_of(run).items()]
    if arguments.json:
        print_json([ListedFile(name=name, bytes=length) for name, length in rows])
    elif not rows:
        print_text(f"run {run.id} has no {kind}")
    else:
        cells = [[Cell(name), Cell(MISSING if length is None else size_text(length))] for name, length in rows]
        print_table([Column(is_kept=True), Column(is_number=True)], cells)
    return 0


def _get(arguments: argparse.Namespace, contents_of: Callable[[Run], Mapping[str, Content]]) -> int:
    from sacristan.runs.transfer.fetching import choose, fetch

    with open_given(arguments) as store:
        contents = choose(contents_of(store.get(arguments.run)), arguments.names)
        done = fetch(contents, arguments.output, overwrite=arguments.force)
    if arguments.json:
        print_json(Fetched(files=[str(path) for path in done.files], refused=list(done.refused)))
    else:
        for path in done.files:
            print_text(str(path))
    for sentence in done.refused:
        print_to_stderr(f"error: {sentence}")
    return 1 if done.refused else 0
