"""`mongod`: your own database server."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from sacristan.runs.commands.terminal.arguments import folder_of, is_url, port, where_of

__all__ = ["NO_JSON", "add_arguments", "main"]

NO_JSON = "it is a server"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--folder", type=Path, help="its data (_mongod in the folder of runs)")
    parser.add_argument("--port", type=port, default=27017, help="its port; 0 takes a free one (27017)")


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
