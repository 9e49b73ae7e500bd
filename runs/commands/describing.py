"""Commands that describe runs: `tag`, `rename`, `note`."""

from __future__ import annotations

import argparse
import sys
from typing import TypedDict

from sacristan.runs.commands.terminal.arguments import add_json, add_run, open_given
from sacristan.runs.commands.terminal.text import print_json, print_text, print_to_stderr

__all__ = ["Note", "Rename", "Tag"]


class Tagged(TypedDict):
    """A run and its tags.

    Attributes:
        id, uid: The run.
        tags: All its tags, sorted.
    """

    id: str
    uid: str | None
    tags: list[str]


class Tag:
    """`tag`: words for finding runs."""

    JSON = Tagged

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_run(parser)
        parser.add_argument("words", nargs="+", metavar="WORD", help="letters, digits, - and _")
        parser.add_argument("--remove", action="store_true", help="remove these tags")
        add_json(parser)

    @staticmethod
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


class Renamed(TypedDict):
    """A run and its display name.

    Attributes:
        id, uid: The run.
        display_name: The display name; empty without one.
    """

    id: str
    uid: str | None
    display_name: str


class Rename:
    """`rename`: a display name for a run."""

    JSON = Renamed

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_run(parser)
        parser.add_argument("name", metavar="NAME", help="the name, at most 200 characters on one line; '' for none")
        add_json(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        """Give the run a display name."""
        with open_given(arguments) as store:
            run = store.rename(store.get(arguments.run), arguments.name)
            if arguments.json:
                print_json(Renamed(id=run.id, uid=run.uid, display_name=run.display_name))
            else:
                print_text(f"run {run.id}: {run.display_name or 'no display name'}")
        return 0


class Noted(TypedDict):
    """A run and its note.

    Attributes:
        id, uid: The run.
        note: The note; empty without one.
    """

    id: str
    uid: str | None
    note: str


class Note:
    """`note`: the note that people keep about a run."""

    JSON = Noted

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_run(parser)
        parser.add_argument(
            "text", nargs="?", metavar="TEXT", help="the new note, - to read it from stdin, '' for none"
        )
        add_json(parser)

    @staticmethod
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
