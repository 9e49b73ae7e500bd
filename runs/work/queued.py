"""`Queue`: the runs of a store that wait to be started: those queued with `-q`, and those of them that were cut off."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import UTC
from pathlib import Path

from sacristan.runs.errors import LaunchError, RunsError
from sacristan.runs.query.texts import list_text
from sacristan.runs.query.times import time_of
from sacristan.runs.rerun.launching import Launch
from sacristan.runs.rerun.record import Record
from sacristan.runs.rerun.resuming import changed_sources, resume_launch, start_launch
from sacristan.runs.stores.opening import open_store
from sacristan.runs.stores.run import HELD, Run
from sacristan.runs.stores.run_list import HANDFUL, census
from sacristan.runs.stores.store import Store
from sacristan.runs.transfer.copying import copy
from sacristan.runs.work.claims import is_pending
from sacristan.runs.work.queue_entry import QueueEntries, QueueEntry
from sacristan.runs.work.queued_task import QueuedTask
from sacristan.runs.work.worker import Source

__all__ = ["Queue"]

# What cut a run off that nobody ended on purpose; after Ctrl-C a person decides.
_BY_A_PERSON = "SIGINT"


class Queue(Source):
    """The runs of a store that wait to be started: those of the greatest `--priority` first, then the oldest.

    Args:
        tell: Takes a sentence for the person: why a run is skipped, how one ended.
        retries: How often a run is taken again that was cut off by a kill or any signal but SIGINT (Ctrl-C).
        any_sources: Whether runs are started whose sources have changed since they were recorded.
        record_to: The folder for runs of a database that have no folder on this machine.
        settings: URLs with their passwords that configs were recorded without.
        options: Options for the experiments' command lines, such as `-m URL`; they replace the recorded ones.

    Attributes:
        num_skipped: Runs that waited when none was taken last, and could not be started.
    """

    def __init__(
        self,
        store: Store,
        tell: Callable[[str], None],
        *,
        retries: int = 3,
        any_sources: bool = False,
        record_to: Path = Path("my_runs"),
        settings: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        self.num_skipped = 0
        self._store, self._tell, self._retries, self._any_sources = store, tell, retries, any_sources
        self._record_to, self._settings, self._options = record_to, list(settings), list(options)
        self._told: set[tuple[str, str]] = set()
        self._entries = QueueEntries(self._options)
        self._recorded: Store | None = None

    def close(self) -> None:
        """Close the connections that the queue opened; the store stays open."""
        self._entries.close()
        if self._recorded is not None:
            self._recorded.close()

    @property
    def idle_text(self) -> str:
        waits = f"{self.num_skipped} skipped" if self.num_skipped else "no run waits"
        return f"{waits}; looking for new ones until Ctrl-C"

    def take(self) -> QueuedTask | None:
        skipped = 0
        for run in self._waiting():
            try:
                task = self._take(run)
            except RunsError as error:
                skipped += 1
                self._tell_once(run, str(error))
            else:
                if task is not None:
                    return task
        self.num_skipped = skipped
        return None

    def _tell_once(self, run: Run, reason: str) -> None:
        if (run.id, reason) not in self._told:
            self._told.add((run.id, reason))
            self._tell(f"run {run.id} is skipped: {reason}")

    def enqueue(self, run: Run) -> None:
        """Queue a run that is HELD because it was queued elsewhere and came here by `copy` or `import`."""
        if run.status != HELD:
            raise LaunchError(f"run {run.id} is {run.status}, expected HELD: one that was queued elsewhere")
        self._entries.of(run, run.original()).enqueue()

    def tell_waiting(self) -> None:
        """Count many waiting runs by kind, and name those that are HELD until somebody here starts them."""
        waiting = self._waiting()
        if len(waiting) > HANDFUL:
            self._tell(f"{census(waiting)} wait")
        held = self._store.find(f"status={HELD}", "queue_time", columns=("queue_time",))
        if held:
            self._tell(
                f"run {list_text([run.id for run in held])}: queued elsewhere, with code of its own, and HELD; look at "
                "it (show ID, sources get ID), then start it: --held ID"
            )

    # ------------------------------------------------------------------ taking one

    def _waiting(self) -> list[Run]:
        """Return the runs that may be taken; those that began before come first."""
        columns = ("queue_time", "status", "name")
        cut_off = self._store.find("status in (DEAD, INTERRUPTED)", "queue_time", columns=columns)
        begun = [run for run in cut_off if run["queue_time"] and run.get("meta.interrupted_by") != _BY_A_PERSON]
        queued = self._store.find("status=QUEUED", "queue_time", columns=columns)
        return [*begun, *sorted(queued, key=_priority, reverse=True)]

    def _take(self, run: Run) -> QueuedTask | None:
        """Claim a run; return None if another worker has it, or it cannot be taken from here.

        If it waits but cannot be started here, this raises RunsError with the reason.
        """
        original, is_begun = run.original(), run.status != "QUEUED"
        entry = self._entries.of(run, original)
        claims = entry.claims(is_begun=is_begun)
        listed = claims.listed()
        if is_begun and (not listed or original is None):
            return None  # nobody took it from the queue, or its states are on another machine
        if listed and is_pending(listed[-1], _began(original or run) if is_begun else None):
            return None
        if len(listed) > self._retries:
            raise LaunchError(f"it was taken {len(listed)} times, and cut off each time; --retries N allows for more")
        launch = self._launch(original or run, is_begun)
        if not claims.add(len(listed) + 1):
            return None
        return self._claimed(run, original, entry, launch, len(listed) + 1)

    def _claimed(
        self, run: Run, original: Run | None, entry: QueueEntry, launch: Launch, attempt: int
    ) -> QueuedTask | None:
        """Return the task of a claimed run; None, and give the claim back, if it was started meanwhile."""
        is_begun = run.status != "QUEUED"
        claims = entry.claims(is_begun=is_begun)
        try:
            if _is_over(original or run, is_begun):
                claims.release(attempt)
                return None
            if original is None:
                original = self._fetched(run)
                dataclasses.replace(entry, folder=original.folder).note_destination()
                launch = self._launch(original, is_begun, is_fetched=True)
        except BaseException:
            claims.release(attempt)
            raise
        return QueuedTask(original, launch, entry, attempt=attempt, is_resumed=is_begun, tell=self._tell)

    def _launch(self, run: Run, is_begun: bool, *, is_fetched: bool = False) -> Launch:
        """Return how a run is started, or resumed if it has begun before."""
        record = Record(run)
        changed = [] if self._any_sources else changed_sources(record)
        if changed:
            raise LaunchError(
                f"its sources have changed since it was recorded ({list_text(changed)}); put back what they were, or "
                "say --any-sources"
            )
        settings = [one for one in self._settings if one.partition("=")[0] in record.hidden_settings]
        if is_begun:
            return resume_launch(run, self._options, settings)
        return start_launch(run, settings, self._options, is_fetched=is_fetched)

    def _fetched(self, run: Run) -> Run:
        """Return a run that only a database has, with a folder on this machine from now on."""
        self._recorded = self._recorded or open_store(self._record_to, create=True)
        return copy(run, self._recorded, stays_queued=True).run


def _priority(run: Run) -> float:
    priority = run.get("meta.priority")
    return float(priority) if isinstance(priority, int | float) else 0.0


def _is_over(run: Run, is_begun: bool) -> bool:
    """Tell whether a run was started, and perhaps ended, by another worker since it was listed."""
    return run.store.get(run.id).status not in (("DEAD", "INTERRUPTED") if is_begun else ("QUEUED",))


def _began(run: Run) -> float | None:
    """Return when a run last began, in seconds since 1970."""
    sessions = run.sessions
    at = time_of(sessions[-1].get("start_time")) if sessions else time_of(run["start_time"])
    return None if at is None else at.replace(tzinfo=UTC).timestamp()
