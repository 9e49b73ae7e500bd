"""`sync`, `reap`, `reindex`, `mongod`: what keeps stores whole."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import time
from pathlib import Path

from runs.commands.arguments import Commands, add_command, add_json, folder_of, is_url, where_of
from runs.commands.terminal import Progress, print_json, print_text

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the commands."""
    sync = add_command(commands, "sync", "deliver to MongoDB what outages and killed processes left behind", _sync)
    _add_where(sync, "folder of runs")
    sync.add_argument("--url", help="mongodb:// URL to use in place of the recorded one, such as one with a password")
    add_json(sync)

    reap = add_command(commands, "reap", "write DEAD into runs whose process is gone", _reap)
    _add_where(reap, "folder of runs, or mongodb:// URL")
    add_json(reap)

    help = "build the index over the runs anew, and name what cannot be read"
    reindex = add_command(commands, "reindex", help, _reindex)
    _add_where(reindex, "folder of runs")
    add_json(reindex)

    mongod = add_command(commands, "mongod", "start a local MongoDB, until Ctrl-C", _mongod)
    mongod.add_argument("--folder", type=Path, help="its data (_mongod in the folder of runs)")
    mongod.add_argument("--port", type=int, default=27017, help="its port; 0 takes a free one (27017)")


def _add_where(parser: argparse.ArgumentParser, what: str) -> None:
    help = f"{what}; the same as --store"
    parser.add_argument("store", nargs="?", default=argparse.SUPPRESS, metavar="STORE", help=help)


def _sync(arguments: argparse.Namespace) -> int:
    from runs.transfer.syncing import sync

    found = []
    for result in sync(folder_of(arguments), arguments.url):
        found.append({**dataclasses.asdict(result), "folder": str(result.folder), "run_id": _text(result.run_id)})
        if not arguments.json:
            number = f" as run {result.run_id}" if result.run_id is not None else ""
            print_text(f"{result.folder}: {result.outcome}{number} ({result.destination})")
    if arguments.json:
        print_json(found)
    elif not found:
        print("no run here was to be delivered to a MongoDB")
    return 0


def _reap(arguments: argparse.Namespace) -> int:
    from runs.transfer.syncing import reap, reap_database

    where, found = where_of(arguments), []
    for which, uid in reap_database(where) if is_url(where) else reap(folder_of(arguments)):
        found.append({"run": str(which), "uid": uid, "status": "DEAD"})
        if not arguments.json:
            print_text(f"{which}: DEAD ({uid})")
    if arguments.json:
        print_json(found)
    return 0


def _reindex(arguments: argparse.Namespace) -> int:
    from runs.index.index import Index

    store = folder_of(arguments)
    with Index(store, Progress()) as index:
        began = time.monotonic()
        done = index.rebuild()
        seconds, problems = time.monotonic() - began, index.problems()
        if arguments.json:
            named = [{"id": name, "reason": reason} for name, reason in problems]
            print_json({"num_runs": done.num_runs, "seconds": seconds, "index": _text(index.path), "problems": named})
            return 0
        for name, reason in problems:
            print_text(f"{store / name}: {reason}")
        where = index.path or "memory, as neither the folder nor a cache can be written"
        print_text(f"{done.num_runs} runs in {seconds:.1f} s, {done.num_problems} with problems ({where})")
    return 0


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _mongod(arguments: argparse.Namespace) -> int:
    from runs.mongod import Mongod

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
