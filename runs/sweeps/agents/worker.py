"""An agent as a process: `python -m runs.sweeps.agents.worker`, which reads what it works with from stdin, as JSON.

Not on the command line, where everybody could read the password of a database.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from runs.errors import RunsError
from runs.sweeps.agents.agent import Agent
from runs.sweeps.agents.trials import Means
from runs.sweeps.study.place import Place
from runs.work.warm import PACKAGES, WarmPython

__all__ = ["main", "work"]


def work(place: Place, id: str, means: Means) -> int:
    """Work on a sweep until nothing is left to take; return how many points were seen through."""
    home = place.home(id)
    try:
        packages = PACKAGES if means.packages is None else means.packages
        with WarmPython(packages, means.environment) as warm:
            return Agent(home, means, warm).run()
    finally:
        home.close()


def main() -> int:
    """Read what to work with, and work."""
    given = _request()
    if given is None:
        print(
            "error: this process is started by sweep.run, which tells it by stdin what to work on; "
            "to start an agent by hand: python exp.py sweep.agent with sweep.id=...",
            file=sys.stderr,
        )
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it
    os.environ.pop("SACRISTAN_TRIAL", None)
    paths = {name: Path(value) for name in ("base", "lab") if (value := given["means"][name]) is not None}
    means = Means(**{**given["means"], **paths})
    try:
        work(Place.of(given["place"]), given["id"], means)
    except KeyboardInterrupt:
        return 130
    except (RunsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _request() -> dict[str, Any] | None:
    """Return what `agent_request` made, read from stdin; None if that holds anything else."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    try:
        given = json.loads(sys.stdin.readline())
    except (ValueError, RecursionError):
        return None
    return given if isinstance(given, dict) and {"place", "id", "means"} <= given.keys() else None


def _leave(number: int, frame: Any) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
