"""`gc`: remove files that no run uses."""

from __future__ import annotations

import argparse

from sacristan.runs.commands.terminal.arguments import add_json, open_given
from sacristan.runs.commands.terminal.outcomes import RemovedRuns, print_removed

__all__ = ["JSON", "add_arguments", "main"]

JSON = RemovedRuns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Remove the files, and print the reclaimed space."""
    with open_given(arguments) as store:
        print_removed(store.collect(), in_json=arguments.json)
    return 0
