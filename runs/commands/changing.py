"""Commands that change runs: `tag`, `rename`, `note` describe them, `rm`, `restore`, `gc` remove and restore them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypedDict

from sacristan.observers.record.redaction import typed_command
from sacristan.runs.commands.terminal import add_conditions, add_json, add_run, add_runs, choose_runs, open_given
from sacristan.runs.commands.terminal.outcomes import RemovedRuns, print_removed
from sacristan.runs.commands.terminal.text import (
    Cell,
    Column,
    harmless,
    print_json,
    print_table,
    print_text,
    print_to_stderr,
)
from sacristan.runs.errors import RunsError, StoreError
from sacristan.runs.query.texts import MISSING, STATUS_STYLES, time_text, utc

if TYPE_CHECKING:
    from sacristan.runs.stores import Discarded, Run

_MAX_SHOWN = 20
_COLUMNS = ("name", "status", "start_time")
_TITLES = ("id", "name", "status", "discarded", "by", "uid")

# `from` is a keyword.
Restored = TypedDict(
    "Restored",
    {
        "id": Annotated[str, "The run."],
        "uid": Annotated[str | None, "The run."],
        "from": Annotated[str, "The former id or uid that was typed."],
    },
)
Restored.__doc__ = "A run that was restored."


class Tagged(TypedDict):
    """A run and its tags."""

    id: Annotated[str, "The run."]
    uid: Annotated[str | None, "The run."]
    tags: Annotated[list[str], "All its tags, sorted."]


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
    """A run and its display name."""

    id: Annotated[str, "The run."]
    uid: Annotated[str | None, "The run."]
    display_name: Annotated[str, "The display name; empty without one."]


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
        with open_given(arguments) as store:
            run = store.rename(store.get(arguments.run), arguments.name)
            if arguments.json:
                print_json(Renamed(id=run.id, uid=run.uid, display_name=run.display_name))
            else:
                print_text(f"run {run.id}: {run.display_name or 'no display name'}")
        return 0


class Noted(TypedDict):
    """A run and its note."""

    id: Annotated[str, "The run."]
    uid: Annotated[str | None, "The run."]
    note: Annotated[str, "The note; empty without one."]


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
                command = typed_command(store.where, "note", run.id)
                print_to_stderr(f"run {run.id} has no note; write one with: {command} 'TEXT'")
            elif arguments.text is None:
                for line in run.note.splitlines():
                    print_text(line)
        return 0


class Rm:
    """`rm`: move runs to the trash, or delete them for good."""

    JSON = RemovedRuns

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_runs(parser, "*", "ids, uids, beginnings of uids, or latest; or choose with --where or --tag")
        add_conditions(parser)
        parser.add_argument("--now", action="store_true", help="delete at once, with the files that no other run uses")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        add_json(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.stores import HANDFUL, census

        with open_given(arguments) as store:
            chosen, _ = choose_runs(store, arguments, _COLUMNS, lists=False)
            if arguments.yes:
                if len(chosen) > HANDFUL:
                    print_to_stderr(f"removing {census(chosen)}")
            else:
                if not (sys.stdin.isatty() and sys.stderr.isatty()):
                    raise RunsError(f"rm removes {census(chosen)}; add --yes if nobody can be asked")
                where = f"{store.where}{' for good' if arguments.now else ''}"
                if not _is_agreed(chosen, f"remove {census(chosen)} from {where}? [y/N] "):
                    print_to_stderr("nothing is removed")
                    return 1
            removed = store.remove(chosen) if arguments.now else store.discard(chosen)
            print_removed(removed, store.where, in_json=arguments.json, in_trash=not arguments.now)
        return 0


def _is_agreed(chosen: list[Run], question: str) -> bool:
    for run in chosen[:_MAX_SHOWN]:
        try:
            text = f"{run.name}  {run.status}  {time_text(run['start_time'])}"
        except StoreError:
            text = "cannot be read"
        print_to_stderr(f"  {run.id}  {text}")
    if len(chosen) > _MAX_SHOWN:
        print_to_stderr(f"  and {len(chosen) - _MAX_SHOWN} more")
    print(harmless(question), end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class InTrash(TypedDict):
    """A run in the trash."""

    id: Annotated[str, "Id that it had in the store."]
    uid: Annotated[str | None, "Globally unique id; null for a run of stock Sacred."]
    name: Annotated[str, "Name of the experiment."]
    status: Annotated[str, "Status at the end."]
    at: Annotated[str, "When it was moved to the trash, UTC."]
    by: Annotated[str, "Who moved it; empty if its record does not tell."]


class Restore:
    """`restore`: bring runs back from the trash."""

    JSON = list[Restored] | list[InTrash]

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        help = "former ids, uids, or beginnings of uids; without any, list the trash"
        parser.add_argument("runs", nargs="*", metavar="RUN", help=help)
        add_json(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        with open_given(arguments) as store:
            if arguments.runs:
                _print_restored([(key, store.restore(key)) for key in arguments.runs], in_json=arguments.json)
            else:
                _print_trash(store.trash(), store.where, in_json=arguments.json)
        return 0


def _print_restored(runs: Sequence[tuple[str, Run]], *, in_json: bool) -> None:
    # Pairs, as several runs may have had the same id.
    if in_json:
        print_json([{"id": run.id, "uid": run.uid, "from": key} for key, run in runs])
        return
    for key, run in runs:
        print_text(f"run {run.id} is back" if key == run.id else f"run {key} was restored as run {run.id}")


def _print_trash(entries: Sequence[Discarded], where: str, *, in_json: bool) -> None:
    if in_json:
        print_json([_in_trash(entry) for entry in entries])
    elif not entries:
        print_text(f"the trash is empty in {where}")
    else:
        rows = [
            [
                Cell(entry.id),
                Cell(entry.name),
                Cell(entry.status, STATUS_STYLES.get(entry.status, "")),
                Cell(time_text(entry.at.isoformat())),
                Cell(entry.by or MISSING),
                Cell(entry.uid or MISSING),
            ]
            for entry in entries
        ]
        print_table([Column(title, is_kept=title == "id") for title in _TITLES], rows)


def _in_trash(entry: Discarded) -> InTrash:
    at = utc(entry.at.replace(tzinfo=None).isoformat())
    return InTrash(id=entry.id, uid=entry.uid, name=entry.name, status=entry.status, at=at, by=entry.by)


class Gc:
    """`gc`: remove files that no run uses."""

    JSON = RemovedRuns

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_json(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        with open_given(arguments) as store:
            print_removed(store.collect(), store.where, in_json=arguments.json)
        return 0
