"""Agents of a sweep as an array job of Slurm, through submitit; or, to try that, as processes on this machine.

A task of the array starts an agent's process and waits for it. If Slurm preempts the task, or its time is nearly over,
the agent has its run save a state, and the task is queued again.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sacristan.configs.slurm import requeue
from sacristan.runs.errors import SweepError, needing_extra
from sacristan.runs.sweeps.agents import AgentOptions
from sacristan.runs.sweeps.agents.agent_process import ROOT, AgentProcess, agent_request
from sacristan.runs.sweeps.study.home import Place
from sacristan.runs.sweeps.views import Status, Watcher, display, say

_LOOK_S = 1.0
# Seconds between two questions to Slurm whether a job is gone.
_ASK_S = 15.0
# Time limits after which a task is queued again: as long as there is work.
_MOST_TIMEOUTS = 10**9
# Holds signals of Slurm back while Python and submitit start, until the task handles them.
_HOLDING = (
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {%s}); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
# submitit's names for resources, and its options that are the same on all clusters.
_RESOURCES = {"cpus": "cpus_per_task", "gpus": "gpus_per_node", "memory_gb": "mem_gb"}
_GENERIC = {"name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "stderr_to_stdout"}


class ArrayTask:
    """One agent of the array, as submitit pickles it: without the password, which the file of its request has."""

    def __init__(self, request: Path) -> None:
        self._request = request

    def __call__(self) -> int:
        """Work until no point is left; a task that is preempted is requeued, and leaves submitit no result."""
        from submitit.core.job_environment import JobEnvironment, SignalHandler

        warning = JobEnvironment._usr_sig()
        queue_again: Any = signal.getsignal(warning)
        is_queued = isinstance(getattr(queue_again, "__self__", None), SignalHandler)  # not in this very process
        received: list[int] = []

        def interrupt(number: int, frame: Any) -> None:
            received.append(number)
            process.interrupt(signal.SIGTERM)

        # Held back while the agent starts. It keeps that of Slurm's warning, which may go to all processes of a job.
        held = {signal.SIGTERM, warning} if is_queued else set()
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        with open(1, "ab", closefd=False) as stdout:
            process = AgentProcess(json.loads(self._request.read_bytes()), stdout)
        for number in held:
            signal.signal(number, interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        process.wait()
        process.release()
        if received and process.poll():
            ask = partial(queue_again, warning, None)
            reason = requeue(ask) if JobEnvironment().cluster == "slurm" else ask()
            if reason:
                raise SweepError(f"the agent was interrupted, and is not queued again: {reason}")
            sys.exit(1)
        return process.poll() or 0

    def checkpoint(self) -> Any:
        """Return the task that submitit queues next."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def run_array(
    place: Place,
    id: str,
    agent_options: AgentOptions,
    num_agents: int,
    resources: Mapping[str, float],
    options: Mapping[str, Any],
) -> Status:
    """Submit agents as an array job, and show the progress of the sweep until the job has ended.

    Of the `num_agents` that should work, those still alive, as of an earlier array, are not submitted again. `options`
    are submitit's without the prefix `slurm_`, and the `cluster`. Ctrl-C raises KeyboardInterrupt; the job continues.
    """
    folder = place.folder(id).absolute() / "slurm"
    with contextlib.closing(place.home(id)) as home:
        watcher = Watcher(home)
        status = watcher.look()
        if status.is_done:
            return status
        if status.num_agents:
            say(f"{status.num_agents} of {num_agents} agents are at work already")
        request = _write_request(folder, agent_request(place, id, agent_options))
        tasks = [ArrayTask(request) for _ in range(num_agents - status.num_agents)]
        jobs = _submit(folder, tasks, id, resources, options) if tasks else []
        number = jobs[0].job_id.partition("_")[0] if jobs else ""
        job = f"job {number}" if jobs else "the job"
        if jobs:
            say(f"{job}: agents are queued, and write to {folder}")
        try:
            status = _watch(watcher, status, jobs, number if options.get("cluster", "slurm") == "slurm" else "")
        except KeyboardInterrupt:
            at_once = f", or at once: scancel {number}" if number else ""
            say(
                f"{job} continues; watch it: sweep.status with sweep.id={id}; end it: sweep.stop with sweep.id={id}, "
                f"which finishes the current runs{at_once}"
            )
            raise
    request.unlink(missing_ok=True)
    if not (status.is_done or status.is_stopped or agent_options.is_late):
        raise SweepError(f"{job} has ended with points left; see {folder}; the same command continues the sweep")
    return status


def _watch(watcher: Watcher, status: Status, jobs: Sequence[Any], number: str) -> Status:
    """Show the progress of a sweep until all jobs have ended and no other agent works; return the last status."""
    asked = time.monotonic()
    is_gone = False
    with display(status, watcher) as look:
        while True:
            if number and time.monotonic() > asked + _ASK_S:
                is_gone, asked = _is_gone(number), time.monotonic()
            has_ended = is_gone or all(job.done() for job in jobs)
            status = watcher.look()
            look(status)
            if has_ended and (status.is_done or not status.num_agents):
                return status
            time.sleep(_LOOK_S)


def _is_gone(number: str) -> bool:
    """Tell whether no task of a job runs or waits; submitit learns that from Slurm's accounting, if there is any."""
    try:
        done = subprocess.run(["squeue", "--noheader", f"--jobs={number}"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return False
    return "Invalid job id" in done.stderr or (done.returncode == 0 and not done.stdout.strip())


def _write_request(folder: Path, request: Mapping[str, Any]) -> Path:
    """Write a file that only its owner can read: it may hold the password of a database."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"request-{secrets.token_hex(4)}.json"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        json.dump(request, stream)
    return path


def _submit(
    folder: Path, tasks: Sequence[ArrayTask], id: str, resources: Mapping[str, float], options: Mapping[str, Any]
) -> list[Any]:
    """Submit tasks as one array, and return submitit's jobs."""
    with needing_extra("slurm", "sweep.engine=slurm"):
        import submitit
        from submitit.core.job_environment import JobEnvironment
        from submitit.core.utils import FailedJobError
    own = {"max_num_timeout": _MOST_TIMEOUTS, **options}
    cluster, lines = own.pop("cluster", "slurm"), own.pop("setup", [])
    # Its Python starts in another folder, and finds the lab's packages by this.
    setup = [f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"]
    setup += [lines] if isinstance(lines, str) else lines
    if cluster == "slurm":
        held = f"{signal.SIGTERM:d}, {JobEnvironment._usr_sig():d}"
        own["python"] = f"{own.get('python', shlex.quote(sys.executable))} -I -S -c {shlex.quote(_HOLDING % held)}"
    arguments = inspect.signature(submitit.core.plugins.get_executors()[cluster].__init__).parameters
    made_with = {f"{cluster}_{name}": own.pop(name) for name in list(own) if name in arguments}
    own.pop("max_num_timeout", None)  # where tasks are not queued again
    named = {"name": f"sweep-{id}", **{_RESOURCES[name]: value for name, value in resources.items()}, **own}
    parameters = {name if name in _GENERIC else f"slurm_{name}": value for name, value in named.items()}
    if cluster in ("slurm", "local"):
        parameters[f"{cluster}_setup"] = setup
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster, **made_with)
        executor.update_parameters(**parameters)
        with executor.batch():
            return [executor.submit(task) for task in tasks]
    except (NameError, AssertionError, TypeError, ValueError, RuntimeError, OSError, FailedJobError) as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise SweepError(f"sweep.slurm: no job can be submitted to {cluster} ({said})") from error
