"""`reap`: runs whose process is gone are marked as DEAD."""

from __future__ import annotations

import argparse

from runs.commands.terminal.arguments import add_json, add_store_place, folder_of, is_url, where_of
from runs.commands.terminal.strict_json import print_json
from runs.commands.terminal.text import print_text

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what may be typed."""
    add_store_place(parser, "folder of runs, or mongodb:// URL")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Mark the runs, and print which."""
    from runs.transfer.syncing import reap, reap_database

    where, found = where_of(arguments), []
    for which, uid in reap_database(where) if is_url(where) else reap(folder_of(arguments)):
        found.append({"run": str(which), "uid": uid, "status": "DEAD"})
        if not arguments.json:
            print_text(f"{which}: DEAD ({uid})")
    if arguments.json:
        print_json(found)
    return 0
