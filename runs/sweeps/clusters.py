"""Agents on a cluster: as actors of Ray, or as an array job of Slurm. Each runs the command line of an agent there.

    command = [sys.executable, "exp.py", "sweep.agent", "with", "sweep.id=lr"]
    with start_agents_ray(4, "auto", {"CPU": 2, "GPU": 1}, command, Path.cwd()) as agents:
        agents.wait()

An agent may end at any time: the sweep knows what it was at by its claims, and another one goes on with it. So all that
is done here is to start agents, to start them again where a node is lost or preempted, and to end them.
"""

from __future__ import annotations

import abc
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from runs.errors import MissingExtraError, SweepError

__all__ = ["Agents", "start_agents_ray", "start_agents_slurm"]

_LOOK_S = 0.2
# An agent that is told to end waits for its run, which saves its state.
_END_BOUND_S = 90.0
# Of the lab's folder, what no agent needs.
_NOT_SHIPPED = [".git", ".venv", "my_runs", "**/__pycache__"]


class Agents(abc.ABC):
    """Agents that were started; leaving a `with` block of them ends them."""

    @abc.abstractmethod
    def codes(self) -> list[int | None]:
        """Return the exit code of each agent; None of those that run, or wait for a place in the cluster."""

    @abc.abstractmethod
    def close(self) -> None:
        """End them, by SIGTERM first, so that their runs save their states; again without effect."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all have ended; return whether they have, after at most `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while None in self.codes():
            if until is not None and time.monotonic() > until:
                return False
            time.sleep(_LOOK_S)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


# ---------------------------------------------------------------------- Ray


def start_agents_ray(
    count: int, address: str | None, resources: Mapping[str, float], command: Sequence[str], working_dir: Path
) -> Agents:
    """Start agents as actors on a Ray cluster; one whose node is lost is started again on another one.

    Args:
        count: How many.
        address: Of the cluster: `auto`, `ray://host:10001`, ...; None starts one on this machine, for these agents.
        resources: What each agent takes: `CPU`, `GPU`, which may be a part of one, and what the cluster defines.
        command: The agent's command line; this Python is that of the node there.
        working_dir: Folder that is copied to each node, and that the command is run in; without `.git`, `.venv` and
            `my_runs`, and what `.gitignore` names. What the agents share, the store and the study, lies elsewhere.

    Raises:
        MissingExtraError: If Ray is not installed.
        SweepError: If the cluster cannot be reached, or no agent fits into it.
    """
    ray = _imported("ray", "ray")
    if ray.is_initialized():
        raise SweepError("this process is connected to a Ray cluster already; call ray.shutdown() first")
    environment = {"working_dir": str(working_dir), "excludes": _NOT_SHIPPED}
    local = {"include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address, runtime_env=environment, logging_level="ERROR", log_to_driver=False, **local)
    except Exception as error:  # of many kinds, by what is wrong with the address
        raise SweepError(f"Ray at {address or 'this machine'} cannot be reached ({_first_line(error)})") from error
    try:
        _check_room(ray.cluster_resources(), resources)
        return _RayAgents(ray, count, resources, list(command))
    except BaseException:
        ray.shutdown()
        raise


def _check_room(there: Mapping[str, float], wanted: Mapping[str, float]) -> None:
    for name, amount in wanted.items():
        if amount > there.get(name, 0):
            raise SweepError(f"an agent takes {amount:g} {name}, and the whole Ray cluster has {there.get(name, 0):g}")


class _RayAgents(Agents):
    def __init__(self, ray: Any, count: int, resources: Mapping[str, float], command: Sequence[str]) -> None:
        self._ray = ray
        others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
        actor = ray.remote(_agent_class()).options(
            num_cpus=resources.get("CPU", 1),
            num_gpus=resources.get("GPU", 0),
            resources=others or None,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=2,  # it is told to end while it runs
        )
        self._actors = [actor.remote() for _ in range(count)]
        self._runs = [one.run.remote(list(command), sys.executable) for one in self._actors]
        self._codes: list[int | None] = [None] * count
        self._is_closed = False

    def codes(self) -> list[int | None]:
        """See `Agents`."""
        if not self._is_closed:
            left = [run for run, code in zip(self._runs, self._codes, strict=True) if code is None]
            ready, _ = self._ray.wait(left, num_returns=len(left), timeout=0) if left else ([], [])
            for run in ready:
                self._codes[self._runs.index(run)] = self._code_of(run)
        return list(self._codes)

    def _code_of(self, run: Any) -> int:
        try:
            return int(self._ray.get(run))
        except self._ray.exceptions.RayError as error:
            raise SweepError(f"an agent cannot be run by Ray ({_first_line(error)})") from error

    def close(self) -> None:
        """See `Agents`."""
        if self._is_closed:
            return
        try:
            ends = [one.end.remote() for one, code in zip(self._actors, self.codes(), strict=True) if code is None]
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.wait(ends, num_returns=len(ends), timeout=_LOOK_S) if ends else None
            self.wait(_END_BOUND_S)
        finally:
            self._is_closed = True
            for one in self._actors:
                self._ray.kill(one)
            self._ray.shutdown()


# ---------------------------------------------------------------------- Slurm


def start_agents_slurm(count: int, folder: Path, command: Sequence[str], **options: Any) -> Agents:
    """Start agents as an array job of Slurm; one that is preempted, or out of time, is queued again.

    Args:
        count: How many.
        folder: For scripts and what the agents print; all nodes see it.
        command: The agent's command line, run in the current folder.
        **options: Of submitit's executor, such as `timeout_min=60`, `gpus_per_node=1`, `slurm_partition="gpu"`; and
            `cluster="local"`, which takes processes on this machine in the place of Slurm.

    Raises:
        MissingExtraError: If submitit is not installed.
        SweepError: If there is no Slurm here, or it does not know an option.
    """
    submitit = _imported("submitit", "slurm")
    cluster = options.pop("cluster", "slurm")
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(**options)
        agent = _agent_class(submitit.helpers.DelayedSubmission)
        with executor.batch():
            jobs = [executor.submit(agent(), list(command), sys.executable) for _ in range(count)]
    except (RuntimeError, NameError, TypeError, ValueError, OSError, submitit.core.utils.FailedJobError) as error:
        raise SweepError(f"agents cannot be submitted to {cluster} ({_first_line(error)})") from error
    return _SlurmAgents(jobs)


class _SlurmAgents(Agents):
    def __init__(self, jobs: Sequence[Any]) -> None:
        self._jobs = list(jobs)
        self._codes: list[int | None] = [None] * len(self._jobs)

    def codes(self) -> list[int | None]:
        """See `Agents`."""
        for place, job in enumerate(self._jobs):
            if self._codes[place] is None and job.done():
                self._codes[place] = self._code_of(job)
        return list(self._codes)

    def _code_of(self, job: Any) -> int:
        error = job.exception()
        return int(job.result()) if error is None else 1

    def close(self) -> None:
        """See `Agents`."""
        left = [job for job in self._jobs if not job.done()]
        for job in left:
            job.cancel()  # by SIGTERM
        until = time.monotonic() + _END_BOUND_S
        while not all(job.done() for job in left):
            if time.monotonic() > until:
                raise SweepError(f"{len(left)} agents do not end; see squeue")
            time.sleep(_LOOK_S)


# ---------------------------------------------------------------------- both


def _agent_class(again: type | None = None) -> type:
    """Return a class whose object runs one agent on a node.

    It is made here so that it is sent as it is: a node need not be able to import this module.

    Args:
        again: What submitit takes for being queued again.
    """

    class Agent:
        """Runs an agent as a process, which ends with the process that runs it."""

        process: Any = None

        def run(self, command: list[str], python: str) -> int:
            """Run a command line to its end, and return its exit code."""
            import ctypes
            import signal
            import subprocess
            import sys

            def end_with_parent() -> None:
                getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, int(signal.SIGTERM), 0, 0, 0)

            words = [sys.executable, *command[1:]] if command[0] == python else command
            self.process = subprocess.Popen(words, process_group=0, preexec_fn=end_with_parent)
            signals = {}
            if again is not None:
                signals[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda *_: self.end())
            try:
                return self.process.wait()
            finally:
                for number, handler in signals.items():
                    signal.signal(number, handler)

        __call__ = run

        def end(self) -> None:
            """Tell the agent to end."""
            if self.process is not None and self.process.poll() is None:
                self.process.terminate()

        def checkpoint(self, *arguments: Any) -> Any:
            """Let the agent's run save its state; go on with another agent when Slurm starts this job again."""
            import os
            import time

            self.end()
            # This is called in the middle of `run`, whose own waiting holds a lock.
            with contextlib.suppress(ChildProcessError):
                while self.process and not os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    time.sleep(0.05)
            self.process = None
            return None if again is None else again(self, *arguments)

    return Agent


def _imported(name: str, extra: str) -> Any:
    """Return an optional package.

    Raises:
        MissingExtraError: If it is not installed.
    """
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"agents on {extra} need the package {name!r}, which is not installed; write pip install -e '.[{extra}]'"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
