"""`reap`: runs whose process is gone are marked as DEAD."""

from __future__ import annotations

import argparse

from runs.commands.terminal.arguments import add_json, add_store_place, where_of
from runs.commands.terminal.text import print_json, print_text

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_store_place(parser, "folder of runs, or mongodb:// URL")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Mark the runs, and print which."""
    from runs.transfer.syncing import reap

    found = reap(where_of(arguments))
    if arguments.json:
        print_json([{"run": str(run), "uid": uid, "status": "DEAD"} for run, uid in found])
        return 0
    for run, uid in found:
        print_text(f"{run}: DEAD ({uid})")
    return 0
