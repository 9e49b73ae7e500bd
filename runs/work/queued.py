"""`Queue`: the runs of a store that wait to be started: those queued with `-q`, and those of them that were cut off."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

from observers.mongo.destination import Destination, database_in, read_destination
from observers.mongo.layout import Collections
from observers.record.identity import RECORD_TO_VARIABLE, START_VARIABLE
from observers.record.schema import CONFIG
from runs.errors import LaunchError, RunsError, StoreError
from runs.query.texts import list_text
from runs.query.times import time_of
from runs.rerun.launching import Launch, recorded_launch
from runs.rerun.processes import end_text
from runs.rerun.record import Record
from runs.rerun.resuming import changed_sources, resume_launch
from runs.stores.mongo.run import MongoRun
from runs.stores.opening import open_store
from runs.stores.run import HELD, Run
from runs.stores.store import Store
from runs.transfer.copying import copy
from runs.work.claims import is_pending
from runs.work.printed import Printed
from runs.work.queue_entry import QueueEntry
from runs.work.worker import End, Source, Task

__all__ = ["Queue", "QueuedTask"]

# What cut a run off that nobody ended on purpose; after Ctrl-C a person decides.
_BY_A_PERSON = "SIGINT"
# The module that starts the processes of a run with several ranks.
_LAUNCHER_OF_RANKS = "torch.distributed.run"


class QueuedTask(Task):
    """An attempt at a queued run.

    Args:
        run: The run, as the folder that it is recorded in has it.
        launch: How it is started.
        entry: Where it is written down.
        attempt: 1 for the first one.
        is_resumed: Whether it has begun before.
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
        if not self._has_begun(end):
            return self._has_not_begun(end)
        try:
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


class Queue(Source):
    """The runs of a store that wait to be started: those of the greatest `--priority` first, then the oldest.

    Args:
        store: The store.
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
        self._clients: dict[Destination, Any] = {}
        self._recorded: Store | None = None

    def close(self) -> None:
        """Close the connections that the queue opened; the store stays open."""
        for client in self._clients.values():
            client.close()
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
        """Queue a run that is HELD because it was queued elsewhere and came here by `copy` or `import`.

        Raises:
            LaunchError: If it is not HELD.
            StoreError: If its database cannot be asked.
        """
        if run.status != HELD:
            raise LaunchError(f"run {run.id} is {run.status}, expected HELD: one that was queued elsewhere")
        self._entry(run, run.original()).enqueue()

    def tell_held(self) -> None:
        """Name the runs that no worker starts until somebody here says so."""
        held = self._store.find(f"status={HELD}", "queue_time", columns=("queue_time",))
        if held:
            self._tell(
                f"run {list_text([run.id for run in held])}: queued elsewhere, with code of its own, and HELD; look at "
                "it (show ID, sources get ID), then start it: --held ID"
            )

    # ------------------------------------------------------------------ taking one

    def _waiting(self) -> list[Run]:
        """Return the runs that may be taken; those that began before come first."""
        cut_off = self._store.find("status in (DEAD, INTERRUPTED)", "queue_time", columns=("queue_time",))
        begun = [run for run in cut_off if run["queue_time"] and run.get("meta.interrupted_by") != _BY_A_PERSON]
        queued = self._store.find("status=QUEUED", "queue_time", columns=("queue_time",))
        return [*begun, *sorted(queued, key=_priority, reverse=True)]

    def _take(self, run: Run) -> QueuedTask | None:
        """Claim a run; return None if another worker has it, or it cannot be taken from here.

        Raises:
            RunsError: If it waits, and cannot be started here; the message says why.
        """
        original, is_begun = run.original(), run.status != "QUEUED"
        entry = self._entry(run, original)
        claims = entry.claims(is_begun=is_begun)
        listed = claims.listed()
        if is_begun and (not listed or original is None):
            return None  # nobody took it from the queue, or its states are on another machine
        if listed and is_pending(listed[-1], _began(original or run) if is_begun else None):
            return None
        attempt = len(listed) + 1
        if attempt > self._retries + 1:
            raise LaunchError(f"it was taken {len(listed)} times, and cut off each time; --retries N allows for more")
        launch = self._launch(original or run, is_begun=is_begun)
        if not claims.add(attempt):
            return None
        try:
            if _is_over(original or run, is_begun):
                claims.release(attempt)
                return None
            if original is None:
                original = self._fetched(run)
                launch = self._launch(original, is_begun=False, is_fetched=True)
        except BaseException:
            claims.release(attempt)
            raise
        return QueuedTask(original, launch, entry, attempt=attempt, is_resumed=is_begun, tell=self._tell)

    def _entry(self, run: Run, original: Run | None) -> QueueEntry:
        """Return where a run is written down.

        Raises:
            LaunchError: If stock Sacred queued it, or its folder is gone.
        """
        if run.uid is None:
            raise LaunchError("it was queued by stock Sacred; start it by hand")
        folder = None if original is None else original.folder
        if isinstance(run, MongoRun):
            return QueueEntry(run.uid, folder, run.mongo.runs, run.mongo.where)
        if folder is None:
            raise LaunchError("its folder is gone")
        destination = read_destination(folder)
        if destination is None:
            return QueueEntry(run.uid, folder)
        destination = self._with_password(destination)
        if destination not in self._clients:
            self._clients[destination] = destination.connect()
        database = self._clients[destination][destination.db_name]
        collections = Collections(database, destination.prefix, destination.collection)
        return QueueEntry(run.uid, folder, collections.runs, destination.label)

    def _with_password(self, destination: Destination) -> Destination:
        """Return a database with the URL that was given as `-m URL`, which may have its password."""
        for word, following in zip(self._options, [*self._options, ""][1:], strict=True):
            url = following if word == "-m" else word.partition("=")[2] if word.startswith("--mongo_db=") else ""
            if "://" in url:
                return dataclasses.replace(destination, url=url, db_name=database_in(url) or destination.db_name)
        return destination

    def _launch(self, run: Run, *, is_begun: bool, is_fetched: bool = False) -> Launch:
        """Return how a run is started, or resumed.

        Raises:
            LaunchError: If that is impossible here and now.
        """
        record = Record(run)
        changed = [] if self._any_sources else changed_sources(record)
        if changed:
            raise LaunchError(
                f"its sources have changed since it was recorded ({list_text(changed)}); put back what they were, or "
                "say --any-sources"
            )
        hidden = record.hidden_settings
        settings = [setting for setting in self._settings if setting.partition("=")[0] in hidden]
        if is_begun:
            return resume_launch(run, self._options, settings)
        folder, options, environment = run.folder, self._options, {}
        if folder is not None:
            environment[START_VARIABLE] = str(folder.absolute())
            if is_fetched or run.document.get("folder") != str(folder.absolute()):
                environment[RECORD_TO_VARIABLE] = str(folder.parent.absolute())
        if is_fetched and folder is not None:
            options = [f"--file_storage={folder.parent.absolute()}", *options]
        config = (folder or Path()) / CONFIG
        return recorded_launch(record, config=config, updates=settings, options=options, environment=environment)

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
