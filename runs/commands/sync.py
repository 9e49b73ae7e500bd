"""`sync`: runs that a database lacks are delivered."""

from __future__ import annotations

import argparse
import dataclasses

from runs.commands.terminal.arguments import add_json, add_store_place, folder_of
from runs.commands.terminal.strict_json import print_json
from runs.commands.terminal.text import print_text

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_store_place(parser, "folder of runs")
    parser.add_argument("--url", help="mongodb:// URL to use in place of the recorded one, such as one with a password")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Deliver, and print what came of each run."""
    from runs.transfer.syncing import deliveries

    found = []
    for result in deliveries(folder_of(arguments), arguments.url):
        run_id = None if result.run_id is None else str(result.run_id)
        found.append({**dataclasses.asdict(result), "folder": str(result.folder), "run_id": run_id})
        if not arguments.json:
            number = f" as run {result.run_id}" if result.run_id is not None else ""
            print_text(f"{result.folder}: {result.outcome}{number} ({result.destination})")
    if arguments.json:
        print_json(found)
    elif not found:
        print("no run here was to be delivered to a MongoDB")
    return 0
