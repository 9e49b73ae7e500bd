"""`log`: the terminal output of a run."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sacristan.runs.commands.terminal.arguments import add_json, add_run, number, open_given
from sacristan.runs.commands.terminal.text import OutputFilter, is_coloured, is_terminal, print_json
from sacristan.runs.documents.run_documents import Output, output_of
from sacristan.runs.errors import RunsError

if TYPE_CHECKING:
    from sacristan.runs.stores.run import Run
    from sacristan.runs.stores.store import Store

__all__ = ["JSON", "add_arguments", "main"]

JSON = Output
_POLL_S = 0.5
_RANK = number(int, lambda value: value >= 0, "the number of a rank, from 0")
_EPILOG = """A terminal gets text, colours and the returns of progress bars, and no other escape sequences. A file or
a pipe gets the output byte for byte."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    add_run(parser)
    help = "print the output of this rank; 0 is the run's own output"
    parser.add_argument("--rank", type=_RANK, default=0, metavar="N", help=help)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--follow", action="store_true", help="print output as it arrives, until the run ends or Ctrl-C")
    add_json(group)


def main(arguments: argparse.Namespace) -> int:
    """Print the output, to its end or live."""
    with open_given(arguments) as store:
        run = store.get(arguments.run)
        if arguments.rank and arguments.follow:
            raise RunsError(f"--rank {arguments.rank} --follow: the output of rank 0 alone can be followed")
        output = _output_of(run, arguments.rank)
        if arguments.json:
            print_json(output_of(run, output))
            return 0
        output_filter = OutputFilter(colours=is_coloured()) if is_terminal() else None
        try:
            if arguments.follow:
                _follow(store, run, output_filter)
            else:
                _write(output(), output_filter)
        finally:
            _write(b"", output_filter, is_last=True)
    return 0


def _output_of(run: Run, rank: int) -> Callable[[], bytes]:
    if rank == 0:
        return lambda: run.read_output()[0]
    outputs = run.rank_outputs
    if rank not in outputs:
        there = ", ".join(map(str, outputs)) or "none but 0, as it was one process, or its folder is elsewhere"
        raise RunsError(f"run {run.id}: got --rank {rank}, but there are: {there}")
    return outputs[rank].read


def _follow(store: Store, run: Run, output_filter: OutputFilter | None) -> None:
    position = 0
    while True:
        # Looked at before the output, so that what comes last is read.
        now = store.get(run.id)
        is_over = now.status not in ("RUNNING", "QUEUED")
        data, position = now.read_output(position)
        _write(data, output_filter)
        if is_over:
            return
        time.sleep(_POLL_S)


def _write(data: bytes, output_filter: OutputFilter | None, *, is_last: bool = False) -> None:
    sys.stdout.flush()
    if output_filter is not None:
        sys.stdout.write(output_filter.take(data, is_last=is_last))
    elif data:
        sys.stdout.buffer.write(data)
    sys.stdout.flush()
