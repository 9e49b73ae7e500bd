"""`Queue`: the runs of a store that wait to be started: those queued with `-q`, and those of them that were cut off.

Queue        finds the next run and claims it
QueuedTask   an attempt at it, as a task of a worker: how it starts, and how its end is reported
QueueEntry   the run as it is written down: in a folder, in another store, or in both
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacristan.observers.mongo import Destination, database_in, read_destination
from sacristan.observers.mongo.delivery import noted_delivery
from sacristan.observers.record.folders import locked
from sacristan.observers.record.journal import Journal
from sacristan.runs.errors import LaunchError, RunsError, StoreError
from sacristan.runs.query import time_of
from sacristan.runs.query.texts import list_text
from sacristan.runs.rerun import Record
from sacristan.runs.rerun.launching import Launch, end_text
from sacristan.runs.rerun.resuming import changed_sources, resume_launch, start_launch
from sacristan.runs.stores import HANDFUL, HELD, Backend, Documents, Run, Store, census
from sacristan.runs.stores.opening import open_backend, open_store
from sacristan.runs.transfer.copying import copy
from sacristan.runs.transfer.syncing import deliveries
from sacristan.runs.work import Claims, End, Output, TaskSource, WorkerTask, is_pending, run_claims

# What cut a run off that nobody ended on purpose; after Ctrl-C a person decides.
_BY_A_PERSON = "SIGINT"
# The states of a run that a worker starts or resumes.
_TO_RUN = ("QUEUED", "DEAD", "INTERRUPTED")
# Seconds between two signs of life of a worker whose runs no observer delivers.
_BEAT_S = 60.0


class Queue(TaskSource):
    """The runs of a store that wait to be started: those of the greatest `--priority` first, then the oldest.

    Args:
        tell: Takes a sentence for the person: why a run is skipped, how one ended.
        retries: How often a run is taken again that was cut off by a kill or any signal but SIGINT (Ctrl-C).
        any_sources: Whether runs are started whose sources have changed since they were recorded.
        record_to: The folder for runs of a database that have no folder on this machine.
        settings: URLs with their passwords that configs were recorded without.
        options: Options for the experiments' command lines, such as `-m URL`; they replace the recorded ones.
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
        self._tasks: list[QueuedTask] = []
        self._last_beat = time.monotonic()

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

    def beat(self) -> None:
        self._tasks = [task for task in self._tasks if not task.is_over]
        if time.monotonic() - self._last_beat > _BEAT_S:
            self._last_beat = time.monotonic()
            for task in self._tasks:
                with contextlib.suppress(StoreError):
                    task.claims.renew(task.attempt)

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
        """Claim a run; None if another worker has it, or it is not for this one; RunsError if it cannot start."""
        original, is_begun = run.original(), run.status != "QUEUED"
        entry = self._entries.of(run, original)
        claims = entry.claims
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
        try:
            if _is_over(original or run, is_begun) or entry.is_over(is_begun):
                entry.claims.release(attempt)
                return None
            if original is None:
                original = self._fetched(run)
                entry = entry.fetched(original)
                is_begun = original.status != "QUEUED"  # by a worker of this machine that was killed
                if original.status not in _TO_RUN:
                    entry.deliver()
                    entry.claims.release(attempt)
                    return None
                launch = self._launch(original, is_begun, is_fetched=True)
        except BaseException:
            entry.claims.release(attempt)
            raise
        task = QueuedTask(original, launch, entry, attempt=attempt, is_resumed=is_begun, tell=self._tell)
        if entry.is_copied:
            self._tasks.append(task)
        return task

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


# The module that starts the processes of a run with several ranks.
_LAUNCHER_OF_RANKS = "torch.distributed.run"


class QueuedTask(WorkerTask):
    """An attempt, the first one 1, at a queued run, which is read from the folder that it is recorded in."""

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
        self.claims, self.is_over = entry.claims, False
        self._entry, self._is_resumed, self._tell = entry, is_resumed, tell
        self.hears = _LAUNCHER_OF_RANKS not in launch.command

    def open_output(self) -> Output:
        return Output(tempfile.TemporaryFile())

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
        self.is_over = True
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
        self.is_over = True
        if self._has_begun(end):
            self.ended(end)
        else:
            self.claims.release(self.attempt)


@dataclasses.dataclass(frozen=True)
class QueueEntry:
    """A run of a queue that no process has begun, or that was cut off."""

    # Where it is written down: its documents and its key, in its folder on this machine, and in the store that it is
    # delivered to. Claims are those of the last one, so that all workers see them.
    places: tuple[tuple[Documents, Any], ...]
    folder: Path | None = None  # its folder on this machine; None if there is none
    store: Backend | None = None  # the store of the queue, if its runs do not lie in folders; else None

    @property
    def claims(self) -> Claims:
        return run_claims(*self.places[-1])

    @property
    def _destination(self) -> Destination | None:
        """The queue's store, if an observer can deliver to it."""
        return None if self.store is None else Destination.at(self.store.address)

    @property
    def is_copied(self) -> bool:
        """True if no observer delivers runs to the queue's store, so that a run is copied there once it has ended."""
        return self.store is not None and self._destination is None

    def is_over(self, is_begun: bool) -> bool:
        """Tell whether a run to be started has begun, or one to be resumed is queued again, where its claims are."""
        documents, key = self.places[-1]
        return (documents.read("status", key)[""]["status"] == "QUEUED") == is_begun

    def fail(self, lines: list[str]) -> None:
        """Write FAILED, and the last lines that its process printed, into a QUEUED run that cannot be started."""
        stopped = datetime.now(UTC).replace(tzinfo=None).isoformat()
        self._change("QUEUED", {"status": "FAILED", "fail_trace": lines, "stop_time": stopped})

    def enqueue(self) -> None:
        """Write QUEUED into a run that is HELD."""
        self._change(HELD, {"status": "QUEUED"})

    def fetched(self, original: Run) -> QueueEntry:
        """Return the entry with the folder that was just made of the run; note there where the run is delivered to."""
        place = (original.store.backend.documents, original.key)
        if original.folder is not None and self._destination is not None:
            with locked(original.folder), contextlib.closing(Journal(original.folder)) as journal:
                self._destination.note(journal)
        return dataclasses.replace(self, places=(place, *self.places), folder=original.folder)

    def deliver(self) -> list[str]:
        """Deliver an ended run to the queue's store if its script has no observer for it; return what went wrong."""
        destination = self._destination
        if self.folder is None or self.store is None or (destination and noted_delivery(self.folder) is not None):
            return []
        address = destination.url if destination else self.store.address
        results = deliveries(self.folder.parent, address, only=[self.folder])
        return [result.error or result.outcome for result in results if result.is_bad]

    def _change(self, before: str, entries: dict[str, Any]) -> None:
        """Change a run that has the status `before`, wherever it is written down."""
        for documents, key in self.places:
            documents.change("status", "", lambda now: {**now, **entries} if now.get("status") == before else now, key)


class QueueEntries:
    """Finds where runs are written down; the worker's `options` may have the password of a database."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._options = list(options)
        self._stores: dict[Destination, Backend] = {}

    def close(self) -> None:
        for store in self._stores.values():
            store.close()

    def of(self, run: Run, original: Run | None) -> QueueEntry:
        """Return where a run is written down.

        `original` is the run as its own folder has it; None if that is not on this machine. A run that stock Sacred
        queued, or whose folder is gone, raises LaunchError.
        """
        if run.uid is None:
            raise LaunchError("it was queued by stock Sacred; start it by hand")
        here = () if original is None else ((original.store.backend.documents, original.key),)
        folder, store = None if original is None else original.folder, run.store.backend
        if store.folder is None:
            return QueueEntry((*here, (store.documents, run.key)), folder, store)
        if folder is None:
            raise LaunchError("its folder is gone")
        destination = read_destination(folder)
        delivered = () if destination is None else (self._delivered(run.uid, self._with_password(destination)),)
        return QueueEntry((*here, *delivered), folder)

    def _delivered(self, uid: str, destination: Destination) -> tuple[Documents, Any]:
        """Return the documents and the key of a run in the database that it is delivered to."""
        try:
            if destination not in self._stores:
                self._stores[destination] = open_backend(destination.address)
            store = self._stores[destination]
            row = store.get([uid]).get(uid)
        except StoreError as error:
            raise StoreError(
                f"{error}; the run was queued there, too, with its claims: give the URL: -- -m URL"
            ) from error
        if row is None:
            raise StoreError(f"MongoDB at {destination.label} does not have it yet; deliver it: sacristan sync")
        return store.documents, row.key

    def _with_password(self, destination: Destination) -> Destination:
        """Return a database with the URL that was given as `-m URL`, which may have its password."""
        for word, following in zip(self._options, [*self._options, ""][1:], strict=True):
            url = following if word == "-m" else word.partition("=")[2] if word.startswith("--mongo_db=") else ""
            if "://" in url:
                return dataclasses.replace(destination, url=url, db_name=database_in(url) or destination.db_name)
        return destination
