"""`resume`: resume an interrupted run in its own record."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sacristan.runs.commands.terminal.arguments import Parser, add_run, number, open_given, split_rest
from sacristan.runs.commands.terminal.outcomes import begin
from sacristan.runs.commands.terminal.text import print_text, print_to_stderr
from sacristan.runs.query.texts import list_text

if TYPE_CHECKING:
    from sacristan.runs.rerun.replaying import Replay
    from sacristan.runs.stores.run import Run

__all__ = ["NO_JSON", "add_arguments", "main"]

NO_JSON = "it becomes the experiment's process; its record has the result: `show --json`"

_EPILOG = """The process is replaced by the experiment's. Its exit code is the run's: 75 if a signal ended it and its
state is saved, so that a scheduler's requeue can resume it again. Give options for the experiment, such as -m URL,
after --. If the password of a URL was not recorded, give the URL as a setting."""
_STEPS = number(int, lambda value: value > 0, "a number of steps, at least 1")


def add_arguments(parser: Parser) -> None:
    """Add the arguments."""
    parser.usage = "%(prog)s [--store WHERE] [--verify K] [--dry] RUN [with SETTING ...] [-- OPTION ...]"
    parser.epilog = _EPILOG
    parser.rest_begins = ("with", "--")
    add_run(parser)
    help = "first replay at least the last K recorded steps from an earlier state; resume only if they are the same"
    parser.add_argument("--verify", type=_STEPS, metavar="K", help=help)
    parser.add_argument("--dry", action="store_true", help="show the plan, and do nothing")


def main(arguments: argparse.Namespace) -> int:
    """Replace this process with the resumed run."""
    from sacristan.runs.rerun.record import Record
    from sacristan.runs.rerun.resuming import changed_sources, resume_launch, states_of, with_folder

    settings, options = split_rest(arguments.rest)
    with open_given(arguments) as store:
        run, _ = with_folder(store.get(arguments.run))
        launch = resume_launch(run, options, settings)
        changed = changed_sources(Record(run))
        if changed:
            names = list_text(changed)
            print_to_stderr(f"{len(changed)} of its sources have changed, so it may end differently: {names}")
        if arguments.verify is not None and not arguments.dry and not _verified(run, arguments.verify, settings):
            return 1
        newest = next((state for state in states_of(run) if not state.fault), None)
        where = "its beginning, as no state was saved" if newest is None else f"{newest.path.name}, step {newest.step}"
    return begin(launch, f"run {run.id} is resumed from {where}", dry=arguments.dry)


def _verified(run: Run, num_steps: int, settings: list[str]) -> bool:
    from sacristan.runs.rerun.replaying import replay

    print_to_stderr(f"replaying the last {num_steps} recorded steps of run {run.id} ...")
    result = replay(run, num_steps, settings)
    print_text(_verdict(result))
    return result.first is None


def _verdict(result: Replay) -> str:
    where = f"steps {result.after + 1} to {result.until}, replayed from {result.state or 'the beginning'}"
    if result.first is None:
        return f"IDENTICAL: {result.num_points} points of {result.num_metrics} metrics, {where}"
    metric, step, recorded, replayed = result.first
    return f"DIVERGED: {metric} at step {step} was {recorded!r}, replayed {replayed!r} ({where})"
