"""`sync`: deliver the runs that a database lacks."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypedDict

from sacristan.runs.commands.terminal.arguments import add_json, add_store_place, folder_of
from sacristan.runs.commands.terminal.text import print_json, print_text, print_to_stderr

if TYPE_CHECKING:
    from sacristan.runs.transfer.syncing import SyncResult

__all__ = ["JSON", "add_arguments", "main"]


class Delivered(TypedDict):
    """The delivery of a run.

    Attributes:
        folder: The folder of the run.
        outcome: `delivered`, `up to date`, `running`, `delivered by another process`, `removed from the database`,
            `incomplete` or `failed`.
        run_id: Id in the database; null without one.
        destination: The database, without credentials; empty if it cannot be read.
        error: Why the delivery failed; null if it did not.
    """

    folder: str
    outcome: str
    run_id: str | None
    destination: str
    error: str | None


JSON = list[Delivered]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_store_place(parser, "folder of runs")
    parser.add_argument("--url", help="mongodb:// URL to use instead of the recorded one, such as one with a password")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Deliver the runs, and print the outcome of each; return 1 if one could not be delivered."""
    from sacristan.runs.transfer.syncing import deliveries

    results = []
    for result in deliveries(folder_of(arguments), arguments.url):
        results.append(result)
        if not arguments.json:
            _print(result)
    num_bad = sum(result.is_bad for result in results)
    if arguments.json:
        print_json([_row(result) for result in results])
    elif not results:
        print("no run here was to be delivered to a MongoDB")
    if num_bad:
        print_to_stderr(f"error: {num_bad} of {len(results)} runs could not be delivered")
    return int(num_bad > 0)


def _print(result: SyncResult) -> None:
    if result.error is not None:
        print_to_stderr(f"{result.folder}: failed: {result.error}")
    else:
        number = f" as run {result.run_id}" if result.run_id is not None else ""
        print_text(f"{result.folder}: {result.outcome}{number} ({result.destination})")


def _row(result: SyncResult) -> Delivered:
    return {
        "folder": str(result.folder),
        "outcome": result.outcome,
        "run_id": None if result.run_id is None else str(result.run_id),
        "destination": result.destination,
        "error": result.error,
    }
