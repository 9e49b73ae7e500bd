"""`work`: start the runs of the queue one after the other."""

from __future__ import annotations

import argparse
from pathlib import Path

from sacristan.runs.commands.terminal.arguments import Parser, number, open_given, split_rest
from sacristan.runs.commands.terminal.text import print_text, print_to_stderr

__all__ = ["NO_JSON", "add_arguments", "main"]

NO_JSON = "it starts runs until it is stopped; `ls --follow --json` reports them"

_EPILOG = """Starts queued runs (python exp.py -q with ...), each in its own record. Any number of workers share a
queue, on all machines that can reach the store. Give options for the experiments after --, such as -m URL with the
password, and URLs of the config that were recorded without their passwords after with."""


def add_arguments(parser: Parser) -> None:
    """Add the arguments."""
    parser.usage = (
        "%(prog)s [--store WHERE] [--workers N] [--until-empty] [--held ID] [with SETTING ...] [-- OPTION ...]"
    )
    parser.epilog = _EPILOG
    parser.rest_begins = ("with", "--")
    help = "number of concurrent runs (1); they share CPU threads and GPUs"
    parser.add_argument(
        "--workers",
        type=number(int, lambda value: value > 0, "a whole number, at least 1"),
        default=1,
        metavar="N",
        help=help,
    )
    parser.add_argument(
        "--until-empty", action="store_true", help="end when the queue is empty and all runs have ended"
    )
    help = "how often an interrupted run is resumed, except after Ctrl-C (3)"
    parser.add_argument(
        "--retries",
        type=number(int, lambda value: value >= 0, "a whole number of at least 0"),
        default=3,
        metavar="N",
        help=help,
    )
    parser.add_argument("--any-sources", action="store_true", help="also start runs whose sources have changed")
    help = "also start this run, which was queued elsewhere and copied or imported; it brings its own code"
    parser.add_argument("--held", action="append", default=[], metavar="ID", help=help)
    help = "folder for runs of a database without a folder on this machine (my_runs)"
    parser.add_argument("--record-to", type=Path, default=Path("my_runs"), metavar="FOLDER", help=help)


def main(arguments: argparse.Namespace) -> int:
    """Work, and return 0 only if every started run succeeded."""
    from sacristan.runs.work.run_queue import Queue
    from sacristan.runs.work.worker import Worker

    settings, options = split_rest(arguments.rest)
    with open_given(arguments) as store:
        queue = Queue(
            store,
            print_to_stderr,
            retries=arguments.retries,
            any_sources=arguments.any_sources,
            record_to=arguments.record_to,
            settings=settings,
            options=options,
        )
        for key in arguments.held:
            queue.enqueue(store.get(key))
        queue.tell_waiting()
        worker = Worker(queue, print_to_stderr, num_places=arguments.workers)
        try:
            worker.work(until_empty=arguments.until_empty)
        finally:
            queue.close()
    if queue.num_skipped:
        number = "1 run waits" if queue.num_skipped == 1 else f"{queue.num_skipped} runs wait"
        print_text(f"{number} in {store.where} and cannot be started here, for the reasons above")
    elif worker.num_started == 0:
        print_text(f"no run waits in {store.where}")
    return 1 if worker.num_failed else 0
