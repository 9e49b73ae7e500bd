"""`artifacts`, `sources`: the files of a run, listed or written into a folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runs.commands.arguments import Commands, add_command, add_json, add_run, open_given
from runs.commands.keeping import size_text
from runs.commands.terminal import Cell, Column, harmless, print_json, print_table, print_text
from runs.commands.wording import MISSING

if TYPE_CHECKING:
    from runs.stores.run import Content, Run

__all__ = ["add_parser"]

_KINDS = {"artifacts": "files that a run made", "sources": "sources that a run was made of"}


def add_parser(commands: Commands) -> None:
    """Add the commands."""
    for kind, what in _KINDS.items():
        group = commands.add_parser(kind, help=f"list or get the {what}", description=f"List or get the {what}.")
        actions = group.add_subparsers(title="commands", required=True, metavar="COMMAND")
        listing = add_command(actions, "ls", f"list the {what}", _ls)
        add_run(listing)
        add_json(listing)
        get = add_command(actions, "get", f"write the {what} into a folder", _get)
        add_run(get)
        get.add_argument("names", nargs="*", metavar="NAME", help="which; all without any")
        get.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where to")
        get.add_argument("--force", action="store_true", help="replace files that are there")
        add_json(get)
        group.set_defaults(kind=kind)


def _contents(run: Run, kind: str) -> dict[str, Content]:
    return run.artifacts if kind == "artifacts" else run.sources


def _ls(arguments: argparse.Namespace) -> int:
    from runs.transfer.fetching import length_of

    with open_given(arguments) as store:
        run = store.get(arguments.run)
        rows = [(name, length_of(content)) for name, content in _contents(run, arguments.kind).items()]
    if arguments.json:
        print_json([{"name": name, "bytes": length} for name, length in rows])
    elif not rows:
        print_text(f"run {run.id} has no {arguments.kind}")
    else:
        cells = [[Cell(name), Cell(MISSING if length is None else size_text(length))] for name, length in rows]
        print_table([Column(is_kept=True), Column(is_number=True)], cells)
    return 0


def _get(arguments: argparse.Namespace) -> int:
    from runs.transfer.fetching import choose, fetch

    with open_given(arguments) as store:
        contents = choose(_contents(store.get(arguments.run), arguments.kind), arguments.names)
        done = fetch(contents, arguments.output, overwrite=arguments.force)
    if arguments.json:
        print_json({"files": [str(path) for path in done.files], "refused": done.refused})
    else:
        for path in done.files:
            print_text(str(path))
    for sentence in done.refused:
        print(f"error: {harmless(sentence)}", file=sys.stderr)
    return 1 if done.refused else 0
