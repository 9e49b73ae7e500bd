"""`AgentProcess`: an agent of a sweep as a process; and what those who supervise agents ask of one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Protocol

from runs.rerun.processes import EndsWithUs
from runs.sweeps.agents.trials import Means
from runs.sweeps.study.place import Place

__all__ = ["END_BOUND_S", "ROOT", "AgentProcess", "Worker", "agent_request"]

# The folder of the lab's packages.
ROOT = Path(__file__).parents[3]
# An agent that is interrupted waits for its run, which saves its state.
END_BOUND_S = 90


class Worker(Protocol):
    """An agent that somebody supervises."""

    @property
    def is_waiting(self) -> bool:
        """True if it has not begun because it waits for a free place."""

    def poll(self) -> int | None:
        """Return its exit code, negative for the signal that ended it; None as long as it runs or waits."""

    def interrupt(self, number: int) -> None:
        """Send it a signal, if it runs."""

    def wait(self, timeout: float | None) -> bool:
        """Wait for its end; return whether that has come."""

    def release(self) -> None:
        """Let go of what belongs to it, once it has ended."""


def agent_request(place: Place, id: str, means: Means) -> dict[str, Any]:
    """Return what `python -m runs.sweeps.agents.worker` reads: JSON, with the password of the database.

    Args:
        place: Where the sweep is kept.
        id: The sweep's.
        means: What the agent works with. It prints to its own stdout.
    """
    lab = None if means.lab is None else str(means.lab)
    settings = {**dataclasses.asdict(means), "base": str(means.base.absolute()), "lab": lab, "output": None}
    return {"place": place.document(), "id": id, "means": settings}


class AgentProcess:
    """An agent's process. It ends when the process that started it does.

    Args:
        request: What `agent_request` returned.
        log: A file for what its runs print.
    """

    is_waiting = False

    def __init__(self, request: dict[str, Any], log: IO[bytes]) -> None:
        search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "runs.sweeps.agents.worker"],
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
        """Its number."""
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
