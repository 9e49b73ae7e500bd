"""`reindex`: rebuild the index over a folder of runs."""

from __future__ import annotations

import argparse
import time
from typing import TypedDict

from sacristan.runs.commands.terminal.arguments import add_json, add_store_place, folder_of
from sacristan.runs.commands.terminal.text import Progress, print_json, print_text

__all__ = ["JSON", "add_arguments", "main"]


class Problem(TypedDict):
    """A run that cannot be read completely.

    Attributes:
        id: Its id.
        reason: Why it cannot be read.
    """

    id: str
    reason: str


class Reindexed(TypedDict):
    """A new index.

    Attributes:
        num_runs: Number of runs in the index, including unreadable ones.
        seconds: Seconds that it took.
        index: The file; null in memory.
        problems: Runs that cannot be read completely.
    """

    num_runs: int
    seconds: float
    index: str | None
    problems: list[Problem]


JSON = Reindexed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_store_place(parser, "folder of runs")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Build the index, and print which runs cannot be read."""
    from sacristan.runs.query.index.index import Index

    store = folder_of(arguments)
    with Index(store, Progress()) as index:
        began = time.monotonic()
        done = index.rebuild()
        seconds, problems = time.monotonic() - began, index.problems()
        if arguments.json:
            named = [Problem(id=name, reason=reason) for name, reason in problems]
            path = None if index.path is None else str(index.path)
            print_json(Reindexed(num_runs=done.num_runs, seconds=seconds, index=path, problems=named))
            return 0
        for name, reason in problems:
            print_text(f"{store / name}: {reason}")
        where = index.path or "memory, as neither the folder nor a cache can be written"
        print_text(f"{done.num_runs} runs in {seconds:.1f} s, {done.num_problems} with problems ({where})")
    return 0
