"""The process of a command becomes that of an experiment."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, NoReturn

from runs.commands.terminal.text import print_to_stderr
from runs.errors import LaunchError

if TYPE_CHECKING:
    from runs.rerun.launching import Launch

__all__ = ["begin"]


def begin(launch: Launch, what: str, *, dry: bool) -> int:
    """Say what is going to be done, and do it.

    Args:
        launch: How the experiment is started.
        what: In words, for the terminal.
        dry: Only say it.

    Returns:
        0, if only to be said; else this process is the experiment's from here on.

    Raises:
        LaunchError: If there is no such program or folder.
    """
    for note in launch.notes:
        print_to_stderr(note)
    variables = {name: value for name, value in launch.environment.items() if name != "PYTHONPATH" and value}
    words = [*(shlex.quote(f"{name}={value}") for name, value in variables.items()), launch.text]
    print_to_stderr(f"{what}: cd {shlex.quote(str(launch.cwd))} && {' '.join(words)}")
    return 0 if dry else _become(launch)


def _become(launch: Launch) -> NoReturn:
    """Let the experiment take the place of this process: signals, terminal and exit code are its own."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.chdir(launch.cwd)
        os.execve(launch.command[0], launch.command, launch.environ())
    except OSError as error:
        raise LaunchError(f"{launch.command[0]} cannot be started in {launch.cwd} ({error.strerror})") from error
