"""`tag`: words for finding runs."""

from __future__ import annotations

import argparse
from typing import TypedDict

from sacristan.runs.commands.terminal.arguments import add_json, add_run, open_given
from sacristan.runs.commands.terminal.text import print_json, print_text

__all__ = ["JSON", "add_arguments", "main"]


class Tagged(TypedDict):
    """A run and its tags.

    Attributes:
        id, uid: The run.
        tags: All its tags, sorted.
    """

    id: str
    uid: str | None
    tags: list[str]


JSON = Tagged


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_run(parser)
    parser.add_argument("words", nargs="+", metavar="WORD", help="letters, digits, - and _")
    parser.add_argument("--remove", action="store_true", help="remove these tags")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Add or remove tags, and print the resulting ones."""
    with open_given(arguments) as store:
        run = store.get(arguments.run)
        words = arguments.words
        run = store.tag(run, remove=words) if arguments.remove else store.tag(run, words)
        if arguments.json:
            print_json(Tagged(id=run.id, uid=run.uid, tags=run.tags))
        else:
            print_text(f"run {run.id}: {', '.join(run.tags) or 'no tags'}")
    return 0
