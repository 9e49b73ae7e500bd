"""Entries of queued runs: each in a folder, in a database, or in both."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacristan.observers.mongo.delivery import noted_delivery
from sacristan.observers.mongo.destination import Destination, database_in, read_destination
from sacristan.observers.mongo.layout import Collections
from sacristan.observers.record.files import read_regular
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.locking import locked
from sacristan.observers.record.schema import CLAIMS, RUN
from sacristan.runs.errors import LaunchError
from sacristan.runs.stores.mongo.run import MongoRun
from sacristan.runs.stores.run import HELD, Run
from sacristan.runs.transfer.syncing import deliveries
from sacristan.runs.work.claims import Claims, FolderClaims, RunClaims, asking

__all__ = ["QueueEntries", "QueueEntry"]


@dataclasses.dataclass(frozen=True)
class QueueEntry:
    """A run of a queue that no process has begun, or that was cut off; in a folder, a database, or both.

    Attributes:
        folder: The folder that it is recorded in; None if it has none on this machine.
        collections: Those of the database that it is delivered to; None if it is delivered to none.
        destination: The database, if the queue is in it.
    """

    uid: str
    folder: Path | None = None
    collections: Collections | None = None
    where: str = ""
    destination: Destination | None = None

    def claims(self, *, is_begun: bool) -> Claims:
        """Return the claims on the run: those of the database if it is delivered to one, so that all workers see them.

        A run that `is_begun` is claimed in any status but QUEUED there, and any other run only in QUEUED.
        """
        if self.collections is not None:
            return RunClaims(self.collections, self.uid, self.where, is_begun=is_begun)
        assert self.folder is not None
        return FolderClaims(self.folder / CLAIMS)

    def fail(self, lines: list[str]) -> None:
        """Write FAILED into a run that cannot be started; one that is no longer QUEUED stays as it is.

        The last lines that its process printed become the `fail_trace`.
        """
        self._change("QUEUED", {"status": "FAILED", "fail_trace": lines}, datetime.now(UTC).replace(tzinfo=None))

    def enqueue(self) -> None:
        """Write QUEUED into a run that is HELD."""
        self._change(HELD, {"status": "QUEUED"})

    def note_destination(self) -> None:
        """Write the database that a run is delivered to into its folder, which was just fetched from that database."""
        if self.folder is not None and self.destination is not None:
            with locked(self.folder), contextlib.closing(Journal(self.folder)) as journal:
                self.destination.note(journal)

    def deliver(self) -> list[str]:
        """Deliver an ended run to the queue's database if its script has no observer for it; return what went wrong."""
        if self.folder is None or self.destination is None or noted_delivery(self.folder) is not None:
            return []
        results = deliveries(self.folder.parent, self.destination.url, only=[self.folder])
        return [result.error or result.outcome for result in results if result.is_bad]

    def _change(self, before: str, entries: dict[str, Any], stopped: datetime | None = None) -> None:
        """Change a run that has the status `before`, wherever it is written down."""
        if self.folder is not None:
            as_text = {} if stopped is None else {"stop_time": stopped.isoformat()}
            _change_folder(self.folder, before, entries | as_text)
        if self.collections is not None:
            as_time = {} if stopped is None else {"stop_time": stopped}
            with asking(self.where):
                runs = self.collections.confirmed.runs
                runs.update_one({"uid": self.uid, "status": before}, {"$set": entries | as_time})


class QueueEntries:
    """Finds where runs of a queue are written down, and connects to the databases among these places.

    Args:
        options: Options of the worker for the experiments' command lines; `-m URL` may hold the password of a database.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._options = list(options)
        self._databases: dict[Destination, Collections] = {}

    def close(self) -> None:
        """Close the connections."""
        for collections in self._databases.values():
            collections.database.client.close()

    def of(self, run: Run, original: Run | None) -> QueueEntry:
        """Return where a run is written down.

        `original` is the run as its own folder has it; None if that is not on this machine. A run that stock Sacred
        queued, or whose folder is gone, raises LaunchError.
        """
        if run.uid is None:
            raise LaunchError("it was queued by stock Sacred; start it by hand")
        folder = None if original is None else original.folder
        if isinstance(run, MongoRun):
            return QueueEntry(run.uid, folder, run.mongo.collections, run.mongo.where, run.mongo.destination)
        if folder is None:
            raise LaunchError("its folder is gone")
        destination = read_destination(folder)
        if destination is None:
            return QueueEntry(run.uid, folder)
        destination = self._with_password(destination)
        if destination not in self._databases:
            database = destination.connect()[destination.db_name]
            self._databases[destination] = Collections(database, destination.prefix, destination.collection)
        return QueueEntry(run.uid, folder, self._databases[destination], destination.label)

    def _with_password(self, destination: Destination) -> Destination:
        """Return a database with the URL that was given as `-m URL`, which may have its password."""
        for word, following in zip(self._options, [*self._options, ""][1:], strict=True):
            url = following if word == "-m" else word.partition("=")[2] if word.startswith("--mongo_db=") else ""
            if "://" in url:
                return dataclasses.replace(destination, url=url, db_name=database_in(url) or destination.db_name)
        return destination


def _change_folder(folder: Path, before: str, entries: dict[str, Any]) -> None:
    with contextlib.suppress(BlockingIOError), locked(folder, wait=False):
        run = parse_json(read_regular(folder / RUN))
        if run["status"] == before:
            journal = Journal(folder)
            journal.write(RUN, {**run, **entries})
            journal.close()
