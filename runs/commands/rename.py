"""`rename`: a display name for a run."""

from __future__ import annotations

import argparse
from typing import TypedDict

from sacristan.runs.commands.terminal.arguments import add_json, add_run, open_given
from sacristan.runs.commands.terminal.text import print_json, print_text

__all__ = ["JSON", "add_arguments", "main"]


class Renamed(TypedDict):
    """A run and its display name.

    Attributes:
        id, uid: The run.
        display_name: The display name; empty without one.
    """

    id: str
    uid: str | None
    display_name: str


JSON = Renamed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_run(parser)
    parser.add_argument("name", metavar="NAME", help="the name, at most 200 characters on one line; '' for none")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Give the run a display name."""
    with open_given(arguments) as store:
        run = store.rename(store.get(arguments.run), arguments.name)
        if arguments.json:
            print_json(Renamed(id=run.id, uid=run.uid, display_name=run.display_name))
        else:
            print_text(f"run {run.id}: {run.display_name or 'no display name'}")
    return 0
