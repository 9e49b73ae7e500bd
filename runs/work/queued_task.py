"""`QueuedTask`: an attempt at a queued run, as a task of a worker: how it starts, and how its end is reported."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable
from typing import Any

from sacristan.runs.errors import RunsError, StoreError
from sacristan.runs.rerun.launching import Launch
from sacristan.runs.rerun.processes import end_text
from sacristan.runs.stores.run import Run
from sacristan.runs.work.printed import Printed
from sacristan.runs.work.queue_entry import QueueEntry
from sacristan.runs.work.worker import End, Task

__all__ = ["QueuedTask"]

# The module that starts the processes of a run with several ranks.
_LAUNCHER_OF_RANKS = "torch.distributed.run"


class QueuedTask(Task):
    """An attempt at a queued run.

    Args:
        run: The run, as the folder that it is recorded in has it.
        attempt: 1 for the first one.
        tell: Takes a sentence for the person.
    """

    def __init__(
        self,
        run: Run,
        launch: Launch,
        entry: QueueEntry,
        *,
        attempt: int,
        is_resumed: bool,
        tell: Callable[[str], None],
    ) -> None:
        self.run, self.launch, self.attempt, self.name = run, launch, attempt, run.id
        self.claims = entry.claims(is_begun=is_resumed)
        self._entry = dataclasses.replace(entry, folder=run.folder)
        self._is_resumed, self._tell = is_resumed, tell
        self.hears = _LAUNCHER_OF_RANKS not in launch.command

    def open_output(self) -> Printed:
        return Printed(tempfile.TemporaryFile())

    def started(self) -> None:
        for note in self.launch.notes:
            self._tell(note)
        start = f"resumed, attempt {self.attempt}" if self._is_resumed else "started"
        self._tell(f"run {self.name} is {start}: {self.run.name} {self.run.command}".rstrip())

    def may_begin(self, process: Any) -> bool:
        try:
            return super().may_begin(process)
        except StoreError:  # a database that is away since the claim keeps no run from its start
            return True

    def ended(self, end: End) -> bool:
        try:
            if not self._has_begun(end):
                return self._has_not_begun(end)
            for reason in self._entry.deliver():
                self._tell(f"run {self.name} is not delivered: {reason}")
            run = self.run.store.get(self.name)
            result = "" if run.result is None else f", result {run.result}"
            self._tell(f"run {run.id} {run.status} after {run.duration_s or 0:.1f} s{result}")
        except RunsError as error:  # somebody has removed it
            self._tell(f"run {self.name} has ended ({end_text(end.code)}): {error}")
            return True
        return run.status != "FAILED"

    def _has_begun(self, end: End) -> bool:
        """Tell whether the run began, by its record if no process could tell."""
        return end.has_begun or (not self.hears and self.run.store.get(self.name).status != "QUEUED")

    def _has_not_begun(self, end: End) -> bool:
        """Fail a run that could not be started, unless another worker has taken it over."""
        with contextlib.suppress(StoreError):
            if not self.claims.is_last(self.attempt):
                self._tell(f"run {self.name} was taken over by another worker before it began")
                return True
        lines = list(end.lines) or [end_text(end.code)]
        if self._is_resumed:
            self._tell(f"run {self.name} was not resumed: {lines[-1]}")
        else:
            self._tell(f"run {self.name} FAILED: it could not be started: {lines[-1]}")
            self._entry.fail(lines)
        return False

    def interrupted(self, end: End) -> None:
        if self._has_begun(end):
            self.ended(end)
        else:
            self.claims.release(self.attempt)
