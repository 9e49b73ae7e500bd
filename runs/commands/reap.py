"""`reap`: mark runs whose process is gone as DEAD."""

from __future__ import annotations

import argparse
from typing import TypedDict

from sacristan.runs.commands.terminal.arguments import add_json, add_store_place, where_of
from sacristan.runs.commands.terminal.text import print_json, print_text

__all__ = ["JSON", "add_arguments", "main"]


class Reaped(TypedDict):
    """A run that was marked as DEAD.

    Attributes:
        run: Its folder, or its id in the database.
        uid: Globally unique id; null for a run of stock Sacred.
        status: DEAD.
    """

    run: str
    uid: str | None
    status: str


JSON = list[Reaped]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_store_place(parser, "folder of runs, or mongodb:// URL")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Mark the runs, and print them."""
    from sacristan.runs.transfer.syncing import reap

    reaped = reap(where_of(arguments))
    if arguments.json:
        print_json([Reaped(run=str(run), uid=uid, status="DEAD") for run, uid in reaped])
        return 0
    for run, uid in reaped:
        print_text(f"{run}: DEAD ({uid})")
    return 0
