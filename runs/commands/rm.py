"""`rm`: runs that go for good."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from runs.commands.terminal.arguments import add_json, add_runs, open_given
from runs.commands.terminal.outcomes import print_removed
from runs.commands.terminal.text import harmless, print_text, print_to_stderr
from runs.commands.terminal.values import count_text, time_text
from runs.errors import RunsError, StoreError

if TYPE_CHECKING:
    from runs.stores.run import Run

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_runs(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Remove the runs, after asking."""
    with open_given(arguments) as store:
        chosen = [store.get(key) for key in arguments.runs]
        if not arguments.yes:
            if not (sys.stdin.isatty() and sys.stderr.isatty()):
                raise RunsError(
                    f"rm removes {count_text(len(chosen), 'run')} for good; say --yes where nobody can be asked"
                )
            if not _is_agreed(chosen, store.where):
                print_text("nothing is removed")
                return 1
        print_removed(store.remove(chosen), in_json=arguments.json)
    return 0


def _is_agreed(chosen: list[Run], where: str) -> bool:
    for run in chosen:
        try:
            text = f"{run.name}  {run.status}  {time_text(run['start_time'])}"
        except StoreError:
            text = "cannot be read"
        print_to_stderr(f"  {run.id}  {text}")
    print(harmless(f"remove {count_text(len(chosen), 'run')} from {where} for good? [y/N] "), end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
