"""`copy`: copy runs into another store."""

from __future__ import annotations

import argparse

from sacristan.runs.commands.terminal.arguments import add_json, add_runs, open_given, open_place, store_address
from sacristan.runs.commands.terminal.outcomes import CopiedRun, print_copied

__all__ = ["JSON", "add_arguments", "main"]

JSON = list[CopiedRun]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_runs(parser)
    parser.add_argument(
        "--to", type=store_address, required=True, metavar="WHERE", help="folder of runs, or mongodb:// URL"
    )
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Copy the runs, and print their new ids."""
    from sacristan.runs.transfer.copying import copy

    with open_given(arguments) as store:
        chosen = [store.get(key) for key in arguments.runs]
        # Each copy would make and remove the folder for prepared runs, and the next one list the store again.
        with open_place(arguments.to, create=True) as target, target.staging():
            copied = [copy(run, target) for run in chosen]
            print_copied(copied, [run.id for run in chosen], in_json=arguments.json)
    return 0
