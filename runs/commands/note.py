"""`note`: the note that people keep about a run."""

from __future__ import annotations

import argparse
import sys
from typing import TypedDict

from sacristan.runs.commands.terminal.arguments import add_json, add_run, open_given
from sacristan.runs.commands.terminal.text import print_json, print_text, print_to_stderr

__all__ = ["JSON", "add_arguments", "main"]


class Noted(TypedDict):
    """A run and its note.

    Attributes:
        id, uid: The run.
        note: The note; empty without one.
    """

    id: str
    uid: str | None
    note: str


JSON = Noted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_run(parser)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the new note, - to read it from stdin, '' for none")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the note, or replace it."""
    with open_given(arguments) as store:
        run = store.get(arguments.run)
        if arguments.text is not None:
            text = arguments.text
            if text == "-":
                text = sys.stdin.buffer.read().decode("utf-8", "replace").removesuffix("\n")
            run = store.write_note(run, text)
        if arguments.json:
            print_json(Noted(id=run.id, uid=run.uid, note=run.note))
        elif arguments.text is None and not run.note:
            print_to_stderr(f"run {run.id} has no note; write one with: sacristan note {run.id} 'TEXT'")
        elif arguments.text is None:
            for line in run.note.splitlines():
                print_text(line)
    return 0
