"""`import`: runs out of an archive."""

from __future__ import annotations

import argparse
from pathlib import Path

from runs.commands.terminal.arguments import add_json, number, open_place, where_of
from runs.commands.terminal.outcomes import print_copied

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", type=Path, metavar="FILE", help="archive written by export")
    help = "limit of the unpacked size (a hundred times the archive's size, at least 1 GB)"
    parser.add_argument(
        "--max-bytes", type=number(int, lambda value: value > 0, "a whole number above 0"), metavar="N", help=help
    )
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Take the runs in, and print which they are here."""
    from runs.transfer.archives import import_runs

    with open_place(where_of(arguments), create=True) as store:
        print_copied(import_runs(arguments.file, store, arguments.max_bytes), None, in_json=arguments.json)
    return 0
