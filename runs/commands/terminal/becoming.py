"""Announce the experiment that a command starts, and become it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from runs.commands.terminal.text import print_to_stderr

if TYPE_CHECKING:
    from runs.rerun.launching import Launch

__all__ = ["begin"]


def begin(launch: Launch, purpose: str, *, dry: bool) -> int:
    """Print to stderr why an experiment starts, and replace this process with it.

    Args:
        launch: The process of the experiment.
        purpose: A clause that says why it starts.
        dry: Whether to print only, and the command as well.

    Returns:
        0 after printing only; otherwise this process becomes the experiment's, and the call does not return.

    Raises:
        LaunchError: If the program or the folder does not exist.
    """
    from runs.rerun.processes import become

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
