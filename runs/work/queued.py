"""Runs that wait in a store: those that were queued with `-q`, and those of the queue that were cut off."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

from observers.mongo.destination import Destination, database_in, read_destination
from observers.mongo.layout import Collections
from observers.record.identity import RECORD_TO_VARIABLE, START_VARIABLE
from observers.record.schema import CONFIG
from runs.errors import LaunchError, RunsError
from runs.query.texts import list_text
from runs.query.times import time_of
from runs.rerun.launching import Launch, recorded_launch
from runs.rerun.record import Record
from runs.rerun.resuming import changed_sources, resume_launch
from runs.stores.mongo.run import MongoRun
from runs.stores.opening import open_store
from runs.stores.run import HELD, Run
from runs.stores.store import Store
from runs.transfer.copying import copy
from runs.work.claims import Claims, FolderClaims, MongoClaims, is_pending

__all__ = ["Queue", "Taken"]

# What cut a run off that nobody ended on purpose; after Ctrl-C a person decides.
_BY_A_PERSON = "SIGINT"


@dataclasses.dataclass(frozen=True)
class Taken:
    """A run that this worker has taken.

    Attributes:
        run: As the folder has it that it is recorded in.
        launch: How it is started.
        attempt: 1 for the first one.
        claims: Where it was taken.
        is_resumed: Whether it has begun before.
    """

    run: Run
    launch: Launch
    attempt: int
    claims: Claims
    is_resumed: bool

    def release(self) -> None:
        """Leave it to others, as it was."""
        self.claims.release(self.attempt)

    def fail(self, reason: list[str]) -> None:
        """Write FAILED into its record, as it cannot be started."""
        if self.run.folder is not None and not isinstance(self.claims, FolderClaims):
            FolderClaims(self.run.folder).fail(reason)
        self.claims.fail(reason)


class Queue:
    """The runs of a store that wait to be started, those of the greatest `--priority` first, then the oldest.

    Args:
        store: The store.
        tell: Takes a sentence for the person: why a run is passed over.
        retries: How often a run is taken again that was cut off, by a kill or any signal but SIGINT (Ctrl-C).
        any_sources: Whether runs are started, too, whose sources have changed since they were recorded.
        record_to: The folder of runs that those of a database are recorded in that have no folder on this machine.
        settings: What their configs were recorded without: URLs with their passwords.
        options: Options of the experiments' command lines, in the place of the recorded ones, such as `-m URL`.

    Attributes:
        num_passed_over: Runs that waited, and could not be started, when none was taken last.
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
        self.num_passed_over = 0
        self._store = store
        self._tell = tell
        self._retries = retries
        self._any_sources = any_sources
        self._record_to = record_to
        self._settings = list(settings)
        self._options = list(options)
        self._told: set[tuple[str, str]] = set()
        self._clients: dict[Destination, Any] = {}
        self._recorded: Store | None = None

    def close(self) -> None:
        """Close the connections that were made for it; the store stays open."""
        for client in self._clients.values():
            client.close()
        if self._recorded is not None:
            self._recorded.close()

    def take(self) -> Taken | None:
        """Take the next run; None if there is none that this worker can start.

        Raises:
            StoreError: If the store cannot be read.
        """
        passed_over = 0
        for run in self._waiting():
            try:
                taken = self._take(run)
            except RunsError as error:
                passed_over += 1
                reason = str(error)
                if (run.id, reason) not in self._told:
                    self._told.add((run.id, reason))
                    self._tell(f"run {run.id} is skipped: {reason}")
            else:
                if taken is not None:
                    return taken
        self.num_passed_over = passed_over
        return None

    def enqueue(self, run: Run) -> None:
        """Queue a run that is HELD, as it was queued elsewhere, and came here by `copy` or `import`.

        Raises:
            LaunchError: If it is not HELD.
        """
        if run.status != HELD:
            raise LaunchError(f"run {run.id} is {run.status}, expected HELD: one that was queued elsewhere")
        original = run.original()
        claims = self._claims(run, original)
        if original is not None and original.folder is not None and not isinstance(claims, FolderClaims):
            FolderClaims(original.folder).enqueue()
        claims.enqueue()

    def tell_held(self) -> None:
        """Tell which runs no worker starts, as nobody here has said so."""
        held = self._store.find(f"status={HELD}", "queue_time", columns=("queue_time",))
        if held:
            self._tell(
                f"run {list_text([run.id for run in held])}: queued elsewhere, with code of its own, and HELD; look at "
                "it (show ID, sources get ID), then start it: --held ID"
            )

    def _waiting(self) -> list[Run]:
        """Return those that may be taken; the ones that were begun come first."""
        cut_off = self._store.find("status in (DEAD, INTERRUPTED)", "queue_time", columns=("queue_time",))
        begun = [run for run in cut_off if run["queue_time"] and run.get("meta.interrupted_by") != _BY_A_PERSON]
        queued = self._store.find("status=QUEUED", "queue_time", columns=("queue_time",))
        return [*begun, *sorted(queued, key=_priority, reverse=True)]

    def _take(self, run: Run) -> Taken | None:
        original = run.original()
        claims = self._claims(run, original)
        made = claims.listed()
        is_begun = run.status != "QUEUED"
        if is_begun and (not made or original is None):
            return None  # it was started by somebody else, or its states are on another machine
        if made and is_pending(made[-1], _began(original or run) if is_begun else None):
            return None
        if len(made) > self._retries:
            raise LaunchError(f"it was taken {len(made)} times, and cut off each time; --retries N allows for more")
        launch = self._launch(original or run, is_begun=is_begun)
        if not claims.add(len(made) + 1, is_begun=is_begun):
            return None
        try:
            # It may have been started, and have ended, since it was listed.
            status = (original or run).store.get((original or run).id).status
            if status not in (("DEAD", "INTERRUPTED") if is_begun else ("QUEUED",)):
                claims.release(len(made) + 1)
                return None
            if original is None:
                original = self._fetched(run)
                launch = self._launch(original, is_begun=False, is_fetched=True)
        except BaseException:
            claims.release(len(made) + 1)
            raise
        return Taken(original, launch, len(made) + 1, claims, is_begun)

    def _claims(self, run: Run, original: Run | None) -> Claims:
        """Return where a run is taken: in its database if it is in one, else in its folder."""
        if run.uid is None:
            raise LaunchError("it was queued by stock Sacred; start it by hand")
        if isinstance(run, MongoRun):
            return MongoClaims(run.mongo.runs, run.uid, run.mongo.where)
        folder = None if original is None else original.folder
        if folder is None:
            raise LaunchError("its folder is gone")
        destination = read_destination(folder)
        if destination is None:
            return FolderClaims(folder)
        destination = self._with_password(destination)
        if destination not in self._clients:
            self._clients[destination] = destination.connect()
        database = self._clients[destination][destination.db_name]
        collections = Collections(database, destination.prefix, destination.collection)
        return MongoClaims(collections.runs, run.uid, destination.label)

    def _with_password(self, destination: Destination) -> Destination:
        """Return a database with the URL that was given as `-m URL`, which may have its password."""
        for place, word in enumerate(self._options):
            url = (
                self._options[place + 1] if word == "-m" and place + 1 < len(self._options) else word.partition("=")[2]
            )
            if (word == "-m" or word.startswith("--mongo_db=")) and "://" in url:
                return dataclasses.replace(destination, url=url, db_name=database_in(url) or destination.db_name)
        return destination

    def _launch(self, run: Run, *, is_begun: bool, is_fetched: bool = False) -> Launch:
        """Return how a run is started, or resumed.

        Raises:
            LaunchError: If it cannot be here and now.
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
        """Return a run of a database alone, with a folder on this machine from here on."""
        self._recorded = self._recorded or open_store(self._record_to, create=True)
        return copy(run, self._recorded, stays_queued=True).run


def _priority(run: Run) -> float:
    given = run.get("meta.priority")
    return float(given) if isinstance(given, int | float) else 0.0


def _began(run: Run) -> float | None:
    """Return when a run last began."""
    sessions = run.sessions
    at = time_of(sessions[-1].get("start_time")) if sessions else time_of(run["start_time"])
    return None if at is None else at.replace(tzinfo=UTC).timestamp()
