"""`rm`: move runs to the trash, or delete them for good."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from sacristan.runs.commands.terminal.arguments import add_json, add_runs, open_given
from sacristan.runs.commands.terminal.outcomes import RemovedRuns, print_removed
from sacristan.runs.commands.terminal.selection import add_conditions, choose_runs
from sacristan.runs.commands.terminal.text import harmless, print_to_stderr
from sacristan.runs.errors import RunsError, StoreError
from sacristan.runs.query.texts import time_text
from sacristan.runs.stores.run_list import HANDFUL, census

if TYPE_CHECKING:
    from sacristan.runs.stores.run import Run

__all__ = ["JSON", "add_arguments", "main"]

JSON = RemovedRuns
_MAX_SHOWN = 20
_COLUMNS = ("name", "status", "start_time")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_runs(parser, "*", "ids, uids, beginnings of uids, or latest; or choose with --where or --tag")
    add_conditions(parser)
    parser.add_argument("--now", action="store_true", help="delete at once, with the files that no other run uses")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Remove the runs, after asking."""
    with open_given(arguments) as store:
        chosen, _ = choose_runs(store, arguments, _COLUMNS, lists=False)
        if arguments.yes:
            if len(chosen) > HANDFUL:
                print_to_stderr(f"removing {census(chosen)}")
        else:
            if not (sys.stdin.isatty() and sys.stderr.isatty()):
                raise RunsError(f"rm removes {census(chosen)}; add --yes if nobody can be asked")
            if not _is_agreed(chosen, store.where, arguments.now):
                print_to_stderr("nothing is removed")
                return 1
        removed = store.remove(chosen) if arguments.now else store.discard(chosen)
        print_removed(removed, in_json=arguments.json, in_trash=not arguments.now)
    return 0


def _is_agreed(chosen: list[Run], where: str, now: bool) -> bool:
    for run in chosen[:_MAX_SHOWN]:
        try:
            text = f"{run.name}  {run.status}  {time_text(run['start_time'])}"
        except StoreError:
            text = "cannot be read"
        print_to_stderr(f"  {run.id}  {text}")
    if len(chosen) > _MAX_SHOWN:
        print_to_stderr(f"  and {len(chosen) - _MAX_SHOWN} more")
    what = f"remove {census(chosen)} from {where}{' for good' if now else ''}? [y/N] "
    print(harmless(what), end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
