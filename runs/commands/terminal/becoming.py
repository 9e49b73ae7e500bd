"""Announces the experiment that a command starts, and replaces this process with it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from sacristan.runs.commands.terminal.text import print_to_stderr

if TYPE_CHECKING:
    from sacristan.runs.rerun.launching import Launch

__all__ = ["begin"]


def begin(launch: Launch, purpose: str, *, dry: bool) -> int:
    """Print to stderr why an experiment starts (`purpose` is a clause), and replace this process with it.

    Returns only with `dry`, which prints the command instead.
    """
    from sacristan.runs.rerun.processes import become

    for note in launch.notes:
        print_to_stderr(note)
    if not dry:
        print_to_stderr(purpose)
        become(launch)
    variables = {name: value for name, value in launch.environment.items() if name != "PYTHONPATH" and value}
    words = [*(shlex.quote(f"{name}={value}") for name, value in variables.items()), launch.text]
    print_to_stderr(f"{purpose}:")
    print_to_stderr(f"  cd {shlex.quote(str(launch.cwd))} && {' '.join(words)}")
    return 0
