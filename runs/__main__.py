"""The command line of past runs: `python -m runs COMMAND`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from runs.errors import RunsError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        return arguments.command(arguments)
    except RunsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runs", description="Look after past runs.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    sync = commands.add_parser("sync", help="deliver to MongoDB what outages and killed processes left behind")
    sync.add_argument("store", nargs="?", type=Path, default=Path("my_runs"), help="folder of runs (my_runs)")
    sync.add_argument("--url", help="mongodb:// URL to use in place of the recorded one, such as one with a password")
    sync.set_defaults(command=_sync)

    reap = commands.add_parser("reap", help="write DEAD into runs whose process is gone")
    reap.add_argument("store", nargs="?", default="my_runs", help="folder of runs, or mongodb:// URL (my_runs)")
    reap.set_defaults(command=_reap)

    reindex = commands.add_parser("reindex", help="build the index over the runs anew, and name what cannot be read")
    reindex.add_argument("store", nargs="?", type=Path, default=Path("my_runs"), help="folder of runs (my_runs)")
    reindex.set_defaults(command=_reindex)

    mongod = commands.add_parser("mongod", help="start a local MongoDB, until Ctrl-C")
    mongod.add_argument("--folder", type=Path, default=Path("my_runs") / "_mongod", help="its data (my_runs/_mongod)")
    mongod.add_argument("--port", type=int, default=27017, help="its port; 0 takes a free one (27017)")
    mongod.set_defaults(command=_mongod)
    return parser


def _sync(arguments: argparse.Namespace) -> int:
    from runs.syncing import sync

    count = 0
    for result in sync(arguments.store, arguments.url):
        number = f" as run {result.run_id}" if result.run_id is not None else ""
        print(f"{result.folder}: {result.outcome}{number} ({result.destination})")
        count += 1
    if not count:
        print("no run here was to be delivered to a MongoDB")
    return 0


def _reap(arguments: argparse.Namespace) -> int:
    from runs.syncing import reap, reap_database

    is_url = arguments.store.startswith(("mongodb://", "mongodb+srv://"))
    for where, uid in reap_database(arguments.store) if is_url else reap(Path(arguments.store)):
        print(f"{where}: DEAD ({uid})")
    return 0


def _reindex(arguments: argparse.Namespace) -> int:
    from runs.index import Index

    with Index(arguments.store) as index:
        began = time.monotonic()
        done = index.rebuild()
        for name, reason in index.problems():
            print(f"{arguments.store / name}: {reason}")
        where = index.path or "memory, as neither the folder nor a cache can be written"
        print(f"{done.num_runs} runs in {time.monotonic() - began:.1f} s, {done.num_problems} with problems ({where})")
    return 0


def _mongod(arguments: argparse.Namespace) -> int:
    from runs.mongod import Mongod

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with Mongod(arguments.folder, arguments.port) as server:
        print(f"{server.url}  (data in {server.folder}; Ctrl-C stops it)", flush=True)
        try:
            return server.wait()
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(main())
