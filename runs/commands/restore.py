"""`restore`: bring runs back from the trash."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from sacristan.runs.commands.terminal.arguments import add_json, open_given
from sacristan.runs.commands.terminal.tables import Cell, Column, print_table
from sacristan.runs.commands.terminal.text import print_json, print_text
from sacristan.runs.query.texts import MISSING, STATUS_STYLES, time_text, utc

if TYPE_CHECKING:
    from sacristan.runs.stores.changes import Discarded
    from sacristan.runs.stores.run import Run

__all__ = ["JSON", "add_arguments", "main"]

_TITLES = ("id", "name", "status", "discarded", "by", "uid")


# `from` is a keyword.
Restored = TypedDict("Restored", {"id": str, "uid": str | None, "from": str})
Restored.__doc__ = """A run that was restored.

Attributes:
    id, uid: The run.
    from: The former id or uid that was typed.
"""


class InTrash(TypedDict):
    """A run in the trash.

    Attributes:
        id: Id that it had in the store.
        uid: Globally unique id; null for a run of stock Sacred.
        name: Name of the experiment.
        status: Status at the end.
        at: When it was moved to the trash, UTC.
        by: Who moved it; empty if its record does not tell.
    """

    id: str
    uid: str | None
    name: str
    status: str
    at: str
    by: str


JSON = list[Restored] | list[InTrash]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    help = "former ids, uids, or beginnings of uids; without any, list the trash"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=help)
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Restore the runs, or list the trash."""
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
