"""An agent as a process: `AgentProcess` starts one, and `python -m sacristan.runs.sweeps.agents.agent_process` is one.

It reads its request, as JSON, from stdin: on the command line everybody could read the password of the database.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Protocol

from sacristan.observers.record.identity import TRIAL_VARIABLE
from sacristan.runs.errors import RunsError
from sacristan.runs.rerun.launching import EndsWithUs
from sacristan.runs.sweeps.agents.agent import Agent
from sacristan.runs.sweeps.agents.trials import AgentOptions
from sacristan.runs.sweeps.study.home import Place
from sacristan.runs.work.warm import PACKAGES, WarmPython

__all__ = ["END_BOUND_S", "ROOT", "AgentProcess", "StartedAgent", "agent_request", "main", "work"]

# The folder of the lab's packages.
ROOT = Path(__file__).parents[3]
# Seconds that an interrupted agent has, in which its run saves its state.
END_BOUND_S = 90


class StartedAgent(Protocol):
    """An agent that was started somewhere, for `supervise`."""

    @property
    def is_waiting(self) -> bool:
        """True if it has not begun because no place is free."""

    def poll(self) -> int | None:
        """Return its exit code, negative for the signal that ended it; None while it runs or waits."""

    def interrupt(self, number: int) -> None:
        """Send it a signal, if it runs."""

    def wait(self, timeout: float | None) -> bool:
        """Wait for its end; return whether it has ended."""

    def release(self) -> None:
        """Free what belongs to it, once it has ended."""


def agent_request(place: Place, id: str, agent_options: AgentOptions) -> dict[str, Any]:
    """Return the JSON that an agent's process reads, with the database's password; its runs print to its own stdout."""
    lab = None if agent_options.lab is None else str(agent_options.lab)
    settings = {
        **dataclasses.asdict(agent_options),
        "base": str(agent_options.base.absolute()),
        "lab": lab,
        "output": None,
    }
    return {"place": place.document(), "id": id, "means": settings}


class AgentProcess:
    """An agent's process on this machine, whose runs print to `log`. It ends when the process that started it does."""

    is_waiting = False

    def __init__(self, request: dict[str, Any], log: IO[bytes]) -> None:
        search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sacristan.runs.sweeps.agents.agent_process"],
            env={**os.environ, "PYTHONPATH": search},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            process_group=0,  # a Ctrl-C reaches it once, from here
        )
        self._bond = EndsWithUs(self._process.pid, END_BOUND_S)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def interrupt(self, number: int = signal.SIGINT) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def release(self) -> None:
        self._bond.release()


# ---------------------------------------------------------------------- within the process


def work(place: Place, id: str, agent_options: AgentOptions) -> int:
    """Work on a sweep as one agent until no point is left, and return how many points it has finished."""
    packages = PACKAGES if agent_options.packages is None else agent_options.packages
    with contextlib.closing(place.home(id)) as home, WarmPython(packages, agent_options.environment) as warm:
        return Agent(home, agent_options, warm).run()


def main() -> int:
    """Read a request from stdin, work on its sweep, and return the exit code."""
    request = _request()
    if request is None:
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
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM}
        )  # Ray and a task of Slurm block them
    os.environ.pop(TRIAL_VARIABLE, None)
    agent_options = request["means"]
    paths = {name: Path(agent_options[name]) for name in ("base", "lab") if agent_options[name] is not None}
    try:
        work(Place.of(request["place"]), request["id"], AgentOptions(**{**agent_options, **paths}))
    except KeyboardInterrupt:
        return 130
    except (RunsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _request() -> dict[str, Any] | None:
    """Return the request of `agent_request`, read from stdin; None if that holds anything else."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    try:
        request = json.loads(sys.stdin.readline())
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) and {"place", "id", "means"} <= request.keys() else None


def _leave(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # Slurm may send it to all processes of a job, and the task passes it on
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
