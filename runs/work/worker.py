"""A worker: starts the runs of a queue from a warm process, some at a time, until it is told to stop."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import IO

from runs.errors import RunsError
from runs.rerun.processes import end_text, raising_signals
from runs.work.queued import Queue, Taken
from runs.work.sharing import divided_threads, visible_gpus
from runs.work.warm import PACKAGES, Job, WarmPython, wait_for_any

__all__ = ["Worker"]

# How long a worker without anything to do waits before it looks again, and how often it looks while it has.
_LOOK_S = 2.0
# Of what a run printed that could not be started.
_MAX_LINES = 20


@dataclasses.dataclass
class _Running:
    """A run that was started.

    Attributes:
        taken: The run.
        job: Its process.
        output: What the process prints; the run's record has it, too, once there is one.
        place: Which of the worker's places it has.
        has_begun: Whether its record has begun.
    """

    taken: Taken
    job: Job
    output: IO[bytes]
    place: int
    has_begun: bool = False


class Worker:
    """Starts runs of a queue.

    Args:
        queue: The queue.
        tell: Takes a sentence for the person.
        num_places: How many runs go on at a time; they share CPU threads and GPUs.
        packages: What its warm process imports.

    Attributes:
        num_started: Runs that were started.
        num_failed: Those of them that failed, or did not start after all.
    """

    def __init__(
        self, queue: Queue, tell: Callable[[str], None], *, num_places: int = 1, packages: Iterable[str] = PACKAGES
    ) -> None:
        self.num_started = self.num_failed = 0
        self._queue = queue
        self._tell = tell
        self._num_places = num_places
        self._packages = packages
        self._gpus = visible_gpus(os.environ) if num_places > 1 else []
        self._running: list[_Running] = []
        self._warm: WarmPython | None = None
        self._is_ending = False

    def work(self, *, until_empty: bool = False) -> None:
        """Start runs until the queue is empty, or for ever; a signal that ends this interrupts those that go on.

        Args:
            until_empty: Whether to return when all runs have ended, and none waits.

        Raises:
            StoreError: If the store cannot be read.
        """
        is_waiting = False
        with raising_signals(), contextlib.ExitStack() as stack:
            stack.callback(self._close)
            try:
                while True:
                    self._fill()
                    if not self._running:
                        if until_empty:
                            return
                        if not is_waiting:
                            passed_over = self._queue.num_passed_over
                            waits = f"{passed_over} passed over" if passed_over else "no run waits"
                            self._tell(f"{waits}; looking for new ones until Ctrl-C")
                        time.sleep(_LOOK_S)
                    is_waiting = not self._running
                    self._look()
            except KeyboardInterrupt:
                self._interrupt(signal.SIGINT)
                raise
            except SystemExit:
                self._interrupt(signal.SIGTERM)
                raise

    def _fill(self) -> None:
        """Start runs as long as there are places."""
        while len(self._running) < self._num_places:
            taken = self._queue.take()
            if taken is None:
                return
            try:
                self._start(taken)
            except BaseException:
                taken.release()
                raise

    def _start(self, taken: Taken) -> None:
        self._warm = self._warm or WarmPython(self._packages, divided_threads(self._num_places))
        place = min(set(range(self._num_places)) - {running.place for running in self._running})
        launch = taken.launch
        for note in launch.notes:
            self._tell(note)
        if self._gpus:
            gpu = {"CUDA_VISIBLE_DEVICES": self._gpus[place % len(self._gpus)]}
            launch = dataclasses.replace(launch, environment={**gpu, **launch.environment})
        output = tempfile.TemporaryFile()  # noqa: SIM115 - till the run has ended
        try:
            job = self._warm.start(launch, output=output.fileno())
        except BaseException:
            output.close()
            raise
        self._running.append(_Running(taken, job, output, place))
        self.num_started += 1
        again = f"resumed, attempt {taken.attempt}" if taken.is_resumed else "started"
        self._tell(f"run {taken.run.id} is {again}: {taken.run.name} {taken.run.command}".rstrip())

    def _look(self) -> None:
        """Wait for something to happen, and see to what has."""
        if self._running:
            wait_for_any([running.job for running in self._running], _LOOK_S)
        for running in list(self._running):
            code = running.job.poll()
            running.has_begun |= any(event.kind == "started" for event in running.job.events())
            if code is not None:
                self._running.remove(running)
                self._see_off(running, code)

    def _see_off(self, running: _Running, code: int) -> None:
        """Tell how a run has ended; one that did not even begin has failed."""
        taken = running.taken
        with running.output as output, running.job:
            if not running.has_begun:
                if self._is_ending:
                    taken.release()
                    return
                self.num_failed += 1
                output.seek(0)
                lines = output.read().decode("utf-8", "replace").splitlines()[-_MAX_LINES:]
                why = lines[-1] if lines else end_text(code)
                if taken.is_resumed:
                    self._tell(f"run {taken.run.id} was not resumed: {why}")
                else:
                    self._tell(f"run {taken.run.id} FAILED: it could not be started: {why}")
                    taken.fail(lines or [why])
                return
        try:
            run = taken.run.store.get(taken.run.id)
            self.num_failed += run.status == "FAILED"
            result = "" if run.result is None else f", result {run.result}"
            self._tell(f"run {run.id} {run.status} after {run.duration_s or 0:.1f} s{result}")
        except RunsError as error:  # somebody has removed it
            self._tell(f"run {taken.run.id} has ended ({end_text(code)}): {error}")

    def _interrupt(self, number: int) -> None:
        """End what goes on as a signal does, and wait until it is recorded; a second signal kills it."""
        self._is_ending = True
        for running in self._running:
            running.job.interrupt(number)
        if self._running:
            runs = ", ".join(running.taken.run.id for running in self._running)
            self._tell(f"interrupting {runs}; once more kills {'it' if len(self._running) == 1 else 'them'}")
        try:
            while self._running:
                self._look()
        except (KeyboardInterrupt, SystemExit):
            for running in self._running:
                running.job.kill()

    def _close(self) -> None:
        for running in self._running:
            with running.output, running.job:
                running.job.kill()
            if not running.has_begun:
                running.taken.release()
        if self._warm is not None:
            self._warm.close()
