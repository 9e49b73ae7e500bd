"""`resume` and `fork`: runs that go on, and new ones that start from a state of theirs."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from runs.commands.arguments import Commands, add_command, add_run, open_given
from runs.commands.terminal import harmless, print_text

if TYPE_CHECKING:
    from runs.rerun.launching import Launch
    from runs.rerun.replaying import Replay
    from runs.stores.folder import FolderRun

__all__ = ["add_parser"]

_SHOWN = 5
_RESUME_EPILOG = """The process becomes that of the experiment: its exit code is that of the run, and 75 where a signal
ended it and its state is saved, so that a scheduler's requeue can resume it again. Options for the experiment, such as
-m URL, go behind --."""
_FORK_EPILOG = """Behind `with` come settings and recipes, as on the experiment's own command line; options for the
experiment go behind --."""


def add_parser(commands: Commands) -> None:
    """Add the commands."""
    help = "go on with a run that was cut off, in its own record, from its newest state"
    usage = "%(prog)s [--store WHERE] [--verify K] [--dry] RUN [-- OPTION ...]"
    resume = add_command(commands, "resume", help, _resume, usage=usage, epilog=_RESUME_EPILOG)
    resume.rest_begins = ("--",)
    add_run(resume)
    help = "first replay at least the last K recorded steps from a state before them; go on only if they are the same"
    resume.add_argument("--verify", type=_steps, metavar="K", help=help)
    resume.add_argument("--dry", action="store_true", help="only show what would be done")

    usage = "%(prog)s [--store WHERE] [--state FILE] [--dry] RUN [with SETTING ...] [-- OPTION ...]"
    help = "start a new run from a state of a run, with a changed config"
    fork = add_command(commands, "fork", help, _fork, usage=usage, epilog=_FORK_EPILOG)
    fork.rest_begins = ("with", "--")
    add_run(fork)
    fork.add_argument("--state", metavar="FILE", help="one of its states, such as step-000000120.pt; else the newest")
    fork.add_argument("--dry", action="store_true", help="only show what would be done")


def _steps(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of steps, at least 1")
    return int(text)


def _resume(arguments: argparse.Namespace) -> int:
    from runs.rerun.resuming import changed_sources, resume_launch, states_of, with_folder

    with open_given(arguments) as store:
        run = with_folder(store.get(arguments.run))
        launch = resume_launch(run, arguments.rest[1:])
        changed = changed_sources(run)
        if changed:
            _say(f"{len(changed)} of its sources are not as recorded, so it may go on otherwise: {_some(changed)}")
        if arguments.verify is not None and not arguments.dry and not _verified(run, arguments):
            return 1
        newest = next((state for state in states_of(run) if not state.fault), None)
        where = "its beginning, as no state was saved" if newest is None else f"{newest.path.name}, step {newest.step}"
    return _begin(launch, f"run {run.id} goes on from {where}", dry=arguments.dry)


def _fork(arguments: argparse.Namespace) -> int:
    from runs.rerun.resuming import fork_launch, with_folder

    updates, options = _split(arguments.rest)
    with open_given(arguments) as store:
        run = with_folder(store.get(arguments.run))
        state = None if arguments.state is None else Path(arguments.state)
        launch = fork_launch(run, updates, options, state)
    return _begin(launch, f"a new run starts from a state of run {run.id}", dry=arguments.dry)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return settings and options of `with SETTING ... -- OPTION ...`."""
    end = words.index("--") if "--" in words else len(words)
    return list(words[1:end]), list(words[end + 1 :])


def _begin(launch: Launch, what: str, *, dry: bool) -> int:
    from observers.mongo.destination import redact

    for note in launch.notes:
        _say(note)
    variables = {name: value for name, value in launch.environment.items() if name != "PYTHONPATH" and value}
    words = [*(f"{name}={value}" for name, value in variables.items()), *map(redact, launch.command)]
    _say(f"{what}: cd {shlex.quote(str(launch.cwd))} && {shlex.join(words)}")
    return 0 if dry else _become(launch)


def _become(launch: Launch) -> NoReturn:
    """Let the experiment take the place of this process: signals, terminal and exit code are its own."""
    from runs.errors import LaunchError

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.chdir(launch.cwd)
        os.execve(launch.command[0], launch.command, launch.environ())
    except OSError as error:
        raise LaunchError(f"{launch.command[0]} cannot be started in {launch.cwd} ({error.strerror})") from error


def _verified(run: FolderRun, arguments: argparse.Namespace) -> bool:
    from runs.rerun.replaying import replay

    _say(f"replaying the last {arguments.verify} recorded steps of run {run.id} ...")
    found = replay(run, arguments.verify)
    print_text(_verdict(found))
    return found.first is None


def _verdict(found: Replay) -> str:
    where = f"steps {found.after + 1} to {found.until}, replayed from {found.state or 'the beginning'}"
    if found.first is None:
        return f"IDENTICAL: {found.num_points} points of {found.num_metrics} metrics, {where}"
    metric, step, recorded, replayed = found.first
    return f"DIVERGED: {metric} at step {step} was {recorded!r}, replayed {replayed!r} ({where})"


def _say(text: str) -> None:
    print(harmless(text), file=sys.stderr)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
