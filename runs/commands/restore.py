"""`restore`: runs that come back out of the trash."""

from __future__ import annotations

import argparse

from runs.commands.terminal.arguments import add_json, open_given
from runs.commands.terminal.strict_json import print_json
from runs.commands.terminal.tables import Cell, Column, print_table
from runs.commands.terminal.text import print_text
from runs.query.texts import MISSING, STATUS_STYLES, time_text, utc

__all__ = ["add_arguments", "main"]

_TITLES = ("id", "name", "status", "discarded", "uid")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    help = "former ids, uids, or beginnings of uids; without any, list the trash"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=help)
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Bring the runs back, or list what is in the trash."""
    with open_given(arguments) as store:
        if arguments.runs:
            found = [(key, store.restore(key)) for key in arguments.runs]
            if arguments.json:
                print_json([{"id": run.id, "uid": run.uid, "from": key} for key, run in found])
            for key, run in () if arguments.json else found:
                print_text(f"run {run.id} is back" if key == run.id else f"run {key} was restored as run {run.id}")
            return 0
        there = store.trash()
        if arguments.json:
            rows = [{**vars(one), "at": utc(one.at.replace(tzinfo=None).isoformat())} for one in there]
            print_json(rows)
        elif not there:
            print_text(f"the trash is empty in {store.where}")
        else:
            cells = [
                [
                    Cell(one.id),
                    Cell(one.name),
                    Cell(one.status, STATUS_STYLES.get(one.status, "")),
                    Cell(time_text(one.at.isoformat())),
                    Cell(one.uid or MISSING),
                ]
                for one in there
            ]
            print_table([Column(title, is_kept=title == "id") for title in _TITLES], cells)
    return 0
