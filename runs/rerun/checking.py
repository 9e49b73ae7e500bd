"""Letting an experiment check the settings of a run before it is started."""

from __future__ import annotations

import subprocess

from observers.record.identity import CHECK_VARIABLE
from runs.errors import LaunchError
from runs.rerun.launching import Launch

__all__ = ["check_settings"]


def check_settings(launch: Launch) -> None:
    """Refuse settings that the run itself would refuse before it starts: nothing is run, and nothing recorded.

    Args:
        launch: How the run is started, with `print_config` as its command; see `recorded_launch`.

    Raises:
        LaunchError: If the experiment refuses them, or does not start.
    """
    environ = launch.environ({CHECK_VARIABLE: "1"})
    try:
        done = subprocess.run(
            launch.command,
            cwd=launch.cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise LaunchError(f"{launch.command[0]} cannot be started in {launch.cwd} ({error.strerror})") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the experiment ended with exit code {done.returncode}"]
        said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        raise LaunchError(said[-1] if said else f"the experiment does not start: {lines[-1]}")
