"""Commands that look after stores: `reap`, `reindex`, `mongod`."""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path
from typing import TypedDict

from sacristan.runs.commands.terminal.arguments import add_json, add_store_place, folder_of, is_url, port, where_of
from sacristan.runs.commands.terminal.text import Progress, print_json, print_text

__all__ = ["Mongod", "Reap", "Reindex"]


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


class Reap:
    """`reap`: mark runs whose process is gone as DEAD."""

    JSON = list[Reaped]

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_store_place(parser, "folder of runs, or mongodb:// URL")
        add_json(parser)

    @staticmethod
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


class Reindex:
    """`reindex`: rebuild the index over a folder of runs."""

    JSON = Reindexed

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_store_place(parser, "folder of runs")
        add_json(parser)

    @staticmethod
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


class Mongod:
    """`mongod`: your own database server."""

    NO_JSON = "it is a server"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--folder", type=Path, help="its data (_mongod in the folder of runs)")
        parser.add_argument("--port", type=port, default=27017, help="its port; 0 takes a free one (27017)")

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        """Start the server, and stop it on Ctrl-C or SIGTERM."""
        from sacristan.runs.work.mongod import Mongod

        def stop(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, stop)
        # Where runs go to a database, there is no folder of runs, and the usual one is taken.
        usual = Path("my_runs") if is_url(where_of(arguments)) else folder_of(arguments)
        with Mongod(arguments.folder or usual / "_mongod", arguments.port) as server:
            print(f"{server.url}  (data in {server.folder}; Ctrl-C stops it)", flush=True)
            try:
                return server.wait()
            except KeyboardInterrupt:
                return 0
