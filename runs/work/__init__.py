"""`Worker` runs tasks as processes, some at a time: runs of a queue, or points of a sweep; claims keep out others.

    TaskSource   says which task comes next, and claims it
    WorkerTask   says how its process is started, and judges its end
    Worker       starts, hears, interrupts and ends the processes

A process asks its worker before it begins to record, and the worker asks the claims.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from sacristan.observers.record.identity import is_alive, lease
from sacristan.runs.errors import RunsError, StoreError
from sacristan.runs.rerun.launching import Launch, raising_signals
from sacristan.runs.stores import Documents
from sacristan.runs.work.warm import END_BOUND_S, PACKAGES, Event, Job, WarmPython, wait_for_any

__all__ = [
    "Claim",
    "Claims",
    "End",
    "Output",
    "TaskSource",
    "Worker",
    "WorkerTask",
    "divided_threads",
    "is_pending",
    "last_claims",
    "last_lines",
    "point_claims",
    "run_claims",
    "visible_gpus",
]

# A run imports its packages between its claim and its start. A claim from another machine that stood for ten times as
# many seconds without a start belongs to a worker that was killed.
_START_BOUND_S = 60.0


@dataclasses.dataclass(frozen=True)
class Claim:
    """The claim of one attempt."""

    attempt: int  # its number
    owner: str = ""  # name of the agent of a sweep, which keeps its lease elsewhere; empty for a worker of a queue
    # Lease of the worker of a queue, as of the claim; empty for an agent, or if the claim is damaged.
    lease: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Lease of the process that last asked to begin this attempt; None before that.
    process: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Claims:
    """The claims on the attempts at one task. Attempts follow each other without gaps."""

    documents: Documents
    kind: str  # the kind of the documents, of which `task` is the owner
    task: Any
    entry: Callable[[int], dict[str, Any]]  # returns what this owner writes when it claims an attempt
    point: int | None = None  # the number of a sweep's point; None for a run

    def listed(self) -> list[Claim]:
        """Return the claims, first attempt first."""
        where = None if self.point is None else _of_points(self.task, [self.point])
        claims = self.documents.read(self.kind, self.task, where=where)
        return sorted((_claim(name, document) for name, document in claims.items()), key=lambda claim: claim.attempt)

    def add(self, attempt: int) -> bool:
        """Claim an attempt, the number after the last claim, once and for all; False if another owner was quicker."""
        mine = self.entry(attempt)
        is_mine = False

        def claim(now: Mapping[str, Any] | None) -> Mapping[str, Any]:
            nonlocal is_mine
            is_mine = now == mine  # as after a first try whose answer was lost
            return mine if now is None else now

        return self._change(attempt, claim) or is_mine

    def release(self, attempt: int) -> None:
        """Take back this owner's claim, the last one, so that others can make it: one whose run has not begun."""
        self._change(attempt, lambda _: None)

    def renew(self, attempt: int) -> None:
        """Note that the worker of a queue that claimed an attempt lives."""
        self._change(attempt, lambda now: now and {**now, "heartbeat": time.time()})

    def is_last(self, attempt: int) -> bool:
        """Tell whether a claimed attempt is still the last one; False if another owner took this one for dead."""
        claims = self.listed()
        return bool(claims) and claims[-1].attempt == attempt

    def begin(self, attempt: int, process: Mapping[str, Any]) -> bool:
        """Note the lease of a process that asks to begin; False if another owner has claimed a later attempt."""
        entry = "process" if self.point is None else "lease"

        def noted(now: Mapping[str, Any] | None) -> Mapping[str, Any]:
            if now is None:
                raise StoreError(f"the claim on attempt {attempt} is gone, and perhaps the run")
            return {**now, entry: dict(process)}

        self._change(attempt, noted)
        return self.is_last(attempt)

    def earlier_processes(self, attempt: int) -> list[Mapping[str, Any]]:
        """Return the leases of processes that asked to begin earlier attempts; this one must wait for their end."""
        return [claim.process for claim in self.listed() if claim.attempt < attempt and claim.process is not None]

    def _change(self, attempt: int, change: Callable[[Any], Mapping[str, Any] | None]) -> bool:
        name = str(attempt) if self.point is None else f"{self.point}/{attempt}"
        return self.documents.change(self.kind, name, change, self.task)


def run_claims(documents: Documents, key: Any) -> Claims:
    """Return the claims on a queued run, whose first attempt is 1; `key` is that of the run."""
    return Claims(documents, "claims", key, lambda _: lease(_START_BOUND_S, is_anonymous=True))


def point_claims(documents: Documents, sweep: str, number: int, agent: str) -> Claims:
    """Return the claims on a point of a sweep, whose first attempt is 0; `agent` is empty to only read them."""
    entry = {"sweep": sweep, "trial": number, "agent": agent}
    return Claims(documents, "sweep_claims", sweep, lambda attempt: {**entry, "attempt": attempt}, number)


def last_claims(documents: Documents, sweep: str, numbers: Collection[int]) -> dict[int, Claim]:
    """Return the last claims on some points, without unclaimed ones, asking once for all of them."""
    documents_by_name = documents.read("sweep_claims", sweep, where=_of_points(sweep, numbers))
    claims = [(document["trial"], _claim(name, document)) for name, document in documents_by_name.items()]
    return dict(sorted(claims, key=lambda claim: claim[1].attempt))


def _of_points(sweep: str, numbers: Collection[int]) -> dict[str, Collection[Any]]:
    return {"sweep": [sweep], "trial": numbers}


def _claim(name: str, document: Mapping[str, Any]) -> Claim:
    point, _, attempt = name.rpartition("/")
    if point:
        return Claim(int(attempt), document["agent"], process=document.get("lease"))
    lease_of_worker = {name: value for name, value in document.items() if name not in ("process", "agent")}
    return Claim(int(attempt), document.get("agent", ""), lease_of_worker, document.get("process"))


def is_pending(claim: Claim, began: float | None) -> bool:
    """Tell whether the worker or process of a claim may still begin the run, which last began at `began` (s)."""
    at = claim.lease.get("heartbeat")
    if began is not None and isinstance(at, int | float) and at <= began:
        return False  # the claim led to that start, and the run has ended since
    return is_alive(claim.lease) or (claim.process is not None and is_alive(claim.process))


# Seconds between two looks of a worker that has something to do, and of one that has nothing.
_LOOK_S, _IDLE_S = 1.0, 2.0


@dataclasses.dataclass(frozen=True)
class End:
    """End of the process of a task; `by_signal` means that a signal ended the worker, and not an error."""

    code: int = 0
    has_begun: bool = False
    folder: Path | None = None
    is_late: bool = False
    lines: Sequence[str] = ()
    by_signal: bool = False


class WorkerTask(abc.ABC):
    """An attempt at a run that this worker has claimed.

    Its `trial` has facts for the process. `hears` means that the process asks before its run begins, and tells that it
    has; see `WarmPython.start`.
    """

    name: str
    launch: Launch
    claims: Claims
    attempt: int
    trial: Mapping[str, Any] = {}
    timeout_s: float = math.inf
    hears: bool = True

    @abc.abstractmethod
    def open_output(self) -> Output:
        """Return the file that the process prints to."""

    def started(self) -> None:  # noqa: B027
        """Note that the process was started."""

    def may_begin(self, process: Mapping[str, Any]) -> bool:
        """Decide whether the process with this lease may begin its run: no other worker claimed a later attempt."""
        return self.claims.begin(self.attempt, process)

    def report(self, event: Event) -> bool | None:
        """Note a reported value; return whether the run must end here, as PRUNED, or None if it does not ask."""
        return None

    @abc.abstractmethod
    def ended(self, end: End) -> bool:
        """Judge the end of the process, record the outcome, and return whether the task ended well."""

    @abc.abstractmethod
    def interrupted(self, end: End) -> None:
        """Leave the task to other workers, because this worker was interrupted, and with it the process.

        The worker ends even if this raises RunsError. `End()` is that of a process that was not started.
        """


class TaskSource(abc.ABC):
    """Base of what gives a worker its tasks: a queue, or an agent of a sweep."""

    @abc.abstractmethod
    def take(self) -> WorkerTask | None:
        """Claim the next task; return None if there is none now."""

    def beat(self) -> None:  # noqa: B027
        """Note that this worker lives; called about once a second."""

    def hurry(self) -> None:  # noqa: B027
        """Wait no longer for a database that is away, because this worker is about to end."""

    @property
    def idle_text(self) -> str:
        """Sentence for a worker that waits for tasks."""
        return "no task waits"


@dataclasses.dataclass
class _Running:
    """A task whose process was started, and may take until `until` on the monotonic clock."""

    task: WorkerTask
    job: Job
    output: Output
    place: int
    until: float
    has_begun: bool = False
    folder: Path | None = None
    is_late: bool = False


class Worker:
    """Runs the tasks of a source, `num_places` at a time, which share CPU threads and GPUs; `tell` takes sentences.

    Without a warm Python to start processes from, it makes one when the first task comes.
    """

    def __init__(
        self,
        source: TaskSource,
        tell: Callable[[str], None],
        *,
        num_places: int = 1,
        packages: Iterable[str] = PACKAGES,
        warm: WarmPython | None = None,
    ) -> None:
        self.num_started = self.num_failed = 0
        self._source, self._tell, self._num_places = source, tell, num_places
        self._packages, self._warm = packages, warm
        self._gpus = visible_gpus(os.environ) if num_places > 1 else []
        self._running: list[_Running] = []
        self._is_ending = self._is_signalled = False

    def work(self, *, until_empty: bool = False) -> None:
        """Run tasks, until none is left if `until_empty`. A signal that ends this interrupts the running ones."""
        is_waiting = False
        with raising_signals(), contextlib.ExitStack() as stack:
            self._stack = stack
            try:
                while True:
                    self._source.beat()
                    self._fill()
                    if not self._running:
                        if until_empty:
                            return
                        if not is_waiting:
                            self._tell(self._source.idle_text)
                        time.sleep(_IDLE_S)
                    is_waiting = not self._running
                    self._look()
            except BaseException as error:
                self._is_signalled = isinstance(error, KeyboardInterrupt | SystemExit)
                # No worker resumes a run that SIGINT ended, because a person wanted that.
                self._end(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
                raise

    def _fill(self) -> None:
        while len(self._running) < self._num_places:
            task = self._source.take()
            if task is None:
                return
            try:
                self._start(task)
            except BaseException as error:
                self._is_signalled = isinstance(error, KeyboardInterrupt | SystemExit)
                self._leave(task, End())
                raise

    def _start(self, task: WorkerTask) -> None:
        if self._warm is None:
            self._warm = self._stack.enter_context(WarmPython(self._packages, divided_threads(self._num_places)))
        place = min(set(range(self._num_places)) - {running.place for running in self._running})
        launch = task.launch
        if self._gpus:
            gpu = {"CUDA_VISIBLE_DEVICES": self._gpus[place % len(self._gpus)]}
            launch = dataclasses.replace(launch, environment={**gpu, **launch.environment})
        output = task.open_output()
        try:
            trial = {**task.trial, "asks": True}
            job = self._warm.start(launch, output=output.descriptor, trial=trial, hears=task.hears)
        except BaseException:
            with output:
                raise
        self._running.append(_Running(task, job, output, place, time.monotonic() + task.timeout_s))
        self.num_started += 1
        task.started()

    def _look(self) -> None:
        if self._running:
            wait_for_any([running.job for running in self._running], _LOOK_S)
        for running in list(self._running):
            code = running.job.poll()
            for event in running.job.events():  # those from before its end as well
                self._hear(running, event)
            if code is not None:
                self._running.remove(running)
                self._see_off(running, code)
            elif time.monotonic() > running.until:
                running.job.interrupt(signal.SIGKILL if running.is_late else signal.SIGTERM)
                running.is_late, running.until = True, time.monotonic() + END_BOUND_S

    def _hear(self, running: _Running, event: Event) -> None:
        if event.kind == "ready":
            running.job.let_begin(not self._is_ending and running.task.may_begin(event.lease or {}))
        elif event.kind == "started":
            running.has_begun, running.folder = True, None if event.folder is None else Path(event.folder)
        elif event.kind == "report" and not self._is_ending:
            prunes = running.task.report(event)
            if prunes is not None:
                running.job.answer(prunes)

    def _see_off(self, running: _Running, code: int) -> None:
        running.job.close()
        with running.output as output:
            end = End(code, running.has_begun, running.folder, running.is_late, output.lines())
        if not self._is_ending:
            self.num_failed += not running.task.ended(end)
            return
        self._leave(running.task, end)

    def _leave(self, task: WorkerTask, end: End) -> None:
        self._source.hurry()
        with contextlib.suppress(RunsError, OSError):  # whoever takes the task over finds out
            task.interrupted(dataclasses.replace(end, by_signal=self._is_signalled))

    def _end(self, number: int) -> None:
        """End the processes as a signal does, and wait until that is recorded; a second signal kills them."""
        self._is_ending = True
        self._source.hurry()
        for running in self._running:
            running.job.interrupt(number)
        if self._running:
            names = ", ".join(running.task.name for running in self._running)
            self._tell(f"interrupting {names}; once more kills {'it' if len(self._running) == 1 else 'them'}")
        try:
            self._wait_for_ends()
        except (KeyboardInterrupt, SystemExit):
            for running in self._running:
                running.job.kill()
            self._wait_for_ends()

    def _wait_for_ends(self) -> None:
        while self._running:
            with contextlib.suppress(RunsError, OSError):
                self._source.beat()
            self._look()


_MOST_LINES, _MOST_BYTES = 20, 4096


class Output(contextlib.AbstractContextManager["Output"]):
    """A file that a process prints to, for a `with` block: a stream, then closed, or a descriptor, which stays open."""

    def __init__(self, target: IO[bytes] | int) -> None:
        self._stream = None if isinstance(target, int) else target
        self.descriptor = target if isinstance(target, int) else target.fileno()
        self._start = os.fstat(self.descriptor).st_size

    def lines(self) -> list[str]:
        """Return the last lines that were printed since this object was made."""
        # A log is open for writing alone, and a temporary file has no path everywhere.
        is_log = self._stream is None
        return last_lines(Path(f"/proc/self/fd/{self.descriptor}") if is_log else self.descriptor, self._start)

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()


def last_lines(file: Path | int, start: int) -> list[str]:
    """Return the last lines with text in a file, from byte `start` on; none of a terminal or an unreadable file."""
    try:
        if isinstance(file, Path) and not file.is_file():
            return []
        with open(file, "rb", closefd=isinstance(file, Path)) as stream:
            stream.seek(max(start, os.fstat(stream.fileno()).st_size - _MOST_BYTES))
            lines = stream.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()][-_MOST_LINES:]


def divided_threads(workers: int) -> dict[str, str]:
    """Return the variables that divide the CPU's threads among workers, unless the user has divided them.

    One worker alone has what a run by itself has. Two trainings that each take both cores of two are 5 to 10 times
    slower than with one each.
    """
    if "OMP_NUM_THREADS" in os.environ or workers == 1:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(cores // workers, 1))}


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that processes see, as `CUDA_VISIBLE_DEVICES` names them; no context is opened on any."""
    names = environment.get("CUDA_VISIBLE_DEVICES")
    if names is not None:
        return [name.strip() for name in names.split(",") if name.strip() not in ("", "-1")]
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return [str(number) for number in range(pynvml.nvmlDeviceGetCount())]
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # without a driver, or one that does not answer
        return []
