"""`MongoObserver`: delivers a run to MongoDB from its journal, through outages of any length.

It takes the place of Sacred's MongoObserver: the same arguments, the same schema of `runs` and `metrics`. Nothing of
the run waits for the network: one background thread reads the journal that the run's `FileObserver` writes, or one of
its own in a spool, and tries for ever.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from pymongo.errors import PyMongoError
from sacred.observers import RunObserver

from observers.artifacts.version import ArtifactError, ArtifactVersion
from observers.file.observer import FileObserver, journal_of
from observers.mongo.delivery import Delivery
from observers.mongo.destination import DESTINATION_FILE, Destination, explain, is_refusal
from observers.mongo.fetch import fetch
from observers.mongo.media import len_media
from observers.mongo.points import len_points
from observers.record.identity import claimed, new_uid
from observers.record.point_log import PointLog
from observers.record.rewinding import Position

__all__ = ["MongoObserver", "Shipper"]

_log = logging.getLogger(__name__)

START_BOUND_S = 2.5
DRAIN_BOUND_S = 10.0
# Between two beats in the database: a run that sends a large artifact is not to look dead.
ARTIFACTS_SLICE_S = 2.0


class Shipper(threading.Thread):
    """Delivers one run's folder again and again, until it is told to stop and all is delivered, or time is up.

    Args:
        connect: Makes the delivery; called again while it fails, as it does where the URL names no server or no file.
        label: The destination in messages.
        interval_s: Time between deliveries.

    Attributes:
        delivery: What delivers; None before it could be made.
        attempted: Set after the first attempt.
    """

    def __init__(self, connect: Callable[[], Delivery], label: str, interval_s: float = 1.0) -> None:
        super().__init__(name="sacristan-shipper", daemon=True)
        self.delivery: Delivery | None = None
        self._connect = connect
        self.label = label
        self.interval_s = interval_s
        self.attempted = threading.Event()
        self._stopping = threading.Event()
        self._refused = False
        self._deadline: float | None = None
        self._troubles: set[str] = set()

    def run(self) -> None:
        """Deliver until `stop`."""
        wait_s = self.interval_s
        while True:
            stopping = self._stopping.is_set()
            delivered = self._try()
            self.attempted.set()
            wait_s = self.interval_s if delivered else min(2 * wait_s, 10.0)
            if stopping:
                if (delivered and self.is_complete) or self._refused or time.monotonic() >= self._deadline:
                    return
                time.sleep(min(0.2, max(0.0, self._deadline - time.monotonic())))
            else:
                self._stopping.wait(wait_s)

    def _try(self) -> bool:
        try:
            if self.delivery is None:
                self.delivery = self._connect()
            self.delivery.advance()
        except Exception as error:
            self._refused = is_refusal(error)
            self._say(explain(error))
            return False
        self._refused = False
        if self._troubles:
            _log.warning("MongoDB at %s: back, and all up to now is delivered", self.label)
            self._troubles.clear()
        return True

    def _say(self, reason: str) -> None:
        if reason not in self._troubles:
            self._troubles.add(reason)
            _log.warning(
                "MongoDB at %s: %s; the run goes on, its record is kept and delivered later", self.label, reason
            )

    @property
    def is_complete(self) -> bool:
        """Whether all that is in the run's folder is delivered."""
        return self.delivery is not None and self.delivery.is_complete

    def stop(self, bound_s: float) -> bool:
        """Deliver what is left, for at most `bound_s` seconds; return whether all is delivered."""
        self._deadline = time.monotonic() + bound_s
        self._stopping.set()
        # One attempt that is under way may outlast the bound by the client's own time-out.
        self.join(bound_s + 3.0)
        return not self.is_alive() and self.is_complete


class _Spool(FileObserver):
    """Records where it is told to: its folder is removed once it is delivered, so it must be one of its own."""

    def _elsewhere(self) -> None:
        return None


class MongoObserver(RunObserver):
    """Delivers runs to a MongoDB.

    Args:
        url: URL of the server; None is localhost.
        db_name: Name of the database.
        collection: Name of the collection of runs, deprecated by Sacred; use `collection_prefix`.
        collection_prefix: Put before the names of the collections, with an underscore.
        overwrite: Taken for Sacred's sake; the id to take if it is free.
        priority: Observers of higher priority hear of events first; the FileObserver has to.
        client: A client to use in place of `url`.
        failure_dir: Where the spool is, by default `my_runs/_spool`.
        **kwargs: Options of `pymongo.MongoClient`.
    """

    def __init__(
        self,
        url: str | None = None,
        db_name: str = "sacred",
        collection: str = "runs",
        collection_prefix: str = "",
        overwrite: int | str | None = None,
        priority: int = 30,
        client: Any = None,
        failure_dir: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        if client is not None and url is not None:
            raise ValueError("MongoObserver: got both a client and a url; give one of them")
        if collection != "runs" and collection_prefix:
            raise ValueError("MongoObserver: got both a collection and a collection_prefix; give the prefix")
        self.destination = Destination(url, db_name, collection_prefix or collection.removesuffix("runs").rstrip("_"))
        self.priority = priority
        self.spool_dir = Path(failure_dir or Path("my_runs") / "_spool")
        self.overwrite = int(overwrite) if overwrite is not None else None
        self._options = kwargs
        self._client = client
        self._own_client = False
        self._spool: FileObserver | None = None
        self._shipper: Shipper | None = None
        self._folder = Path()
        self._claim = contextlib.ExitStack()

    # ------------------------------------------------------------------ a run begins

    def queued_event(self, *args: Any, **kwargs: Any) -> Any:
        """Deliver a run that is to be started by somebody else."""
        return self._begin("queued_event", *args, **kwargs)

    def started_event(self, *args: Any, **kwargs: Any) -> Any:
        """Begin to deliver a run; returns its id in the database, or None if that is not reachable within seconds."""
        return self._begin("started_event", *args, **kwargs)

    def _begin(self, event: str, ex_info: dict, command: str, host_info: dict, *args: Any, **kwargs: Any) -> Any:
        names = ("start_time" if event == "started_event" else "queue_time", "config", "meta_info", "_id")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        wanted = self.overwrite if self.overwrite is not None else given.get("_id")
        journal = journal_of(given["meta_info"].get("uid"))
        if journal is None:
            self._spool = _Spool(self.spool_dir / new_uid())
            getattr(self._spool, event)(ex_info, command, host_info, **{**given, "_id": "run"})
            journal = self._spool
            # `runs sync` removes a spool that it has delivered, and leaves one that is claimed alone.
            self._claim.enter_context(claimed(Path(journal.dir)))
        folder, base = Path(journal.dir), Path(journal.basedir)
        journal.journal.write(DESTINATION_FILE, self.destination.written())
        self._folder, self._own_client = folder, self._client is None

        def connect() -> Delivery:
            if self._client is None:
                self._client = self.destination.connect(**self._options)
            database = self._client[self.destination.db_name]
            delivery = Delivery(folder, base, database, self.destination.prefix, _as_number(wanted))
            delivery.artifacts_slice_s = ARTIFACTS_SLICE_S
            return delivery

        self._shipper = Shipper(connect, self.destination.label)
        self._shipper.start()
        self._shipper.attempted.wait(START_BOUND_S)
        if given.get("_id") is not None:
            return given["_id"]
        return self._shipper.delivery.run_id if self._shipper.delivery is not None else None

    # ------------------------------------------------------------------ a run goes on

    def heartbeat_event(self, info: dict, captured_out: str, beat_time: datetime, result: Any) -> None:
        """Pass the beat on to the spool, if there is one."""
        if self._spool is not None:
            self._spool.heartbeat_event(info, captured_out, beat_time, result)

    def open_points(self) -> PointLog | None:
        """Return the log of the spool, if there is one; what another observer writes is delivered from there."""
        return None if self._spool is None else self._spool.open_points()

    def log_metrics(self, metrics_by_name: dict, info: dict) -> None:
        """Pass new points on to the spool, if there is one."""
        if self._spool is not None:
            self._spool.log_metrics(metrics_by_name, info)

    def resource_event(self, filename: str) -> None:
        """Pass a resource on to the spool, if there is one."""
        if self._spool is not None:
            self._spool.resource_event(filename)

    def artifact_event(self, name: str, filename: str, metadata: Any = None, content_type: str | None = None) -> None:
        """Pass an artifact on to the spool, if there is one."""
        if self._spool is not None:
            self._spool.artifact_event(name, filename, metadata, content_type)

    def fetch_artifact(self, reference: str, root: Path) -> ArtifactVersion | None:
        """Return a version of an artifact from the database, its contents in the store at `root`; None if it has none.

        Raises:
            ArtifactError: If the database cannot be reached or refuses, or the version is damaged or cannot be kept.
        """
        if self._client is None:
            return None
        prefix = f"{self.destination.prefix}_" if self.destination.prefix else ""
        try:
            return fetch(self._client[self.destination.db_name], prefix, reference, root)
        except PyMongoError as error:
            raise ArtifactError(f"{reference}: MongoDB at {self.destination.label}: {explain(error)}") from error

    def media_event(self, entries: list) -> None:
        """Pass images, figures, histograms, texts and tables on to the spool, if there is one."""
        if self._spool is not None:
            self._spool.media_event(entries)

    def flush_event(self) -> None:
        """Let the spool write down all it has, if there is one."""
        if self._spool is not None:
            self._spool.flush_event()

    def rewind_event(self, position: Position, step: int | None = None) -> Position | None:
        """Let the spool go back to a position, if there is one; what is delivered follows the journal."""
        return None if self._spool is None else self._spool.rewind_event(position, step)

    # ------------------------------------------------------------------ a run ends

    def completed_event(self, stop_time: datetime, result: Any) -> None:
        """Pass the end on to the spool; `join` delivers it."""
        if self._spool is not None:
            self._spool.completed_event(stop_time, result)

    def interrupted_event(self, interrupt_time: datetime, status: str) -> None:
        """Pass the interruption on to the spool; `join` delivers it."""
        if self._spool is not None:
            self._spool.interrupted_event(interrupt_time, status)

    def failed_event(self, fail_time: datetime, fail_trace: list[str]) -> None:
        """Pass the failure on to the spool; `join` delivers it."""
        if self._spool is not None:
            self._spool.failed_event(fail_time, fail_trace)

    def join(self) -> None:
        """Deliver what is left, within `DRAIN_BOUND_S`, and say in one line what is not."""
        if self._shipper is None:
            return
        shipper, self._shipper = self._shipper, None
        delivered = shipper.stop(DRAIN_BOUND_S)
        if self._own_client and self._client is not None:
            self._client.close()
            self._client = None
        if delivered and self._spool is not None:
            shutil.rmtree(self._spool.basedir, ignore_errors=True)
        self._claim.close()
        if delivered:
            return
        delivery = shipper.delivery
        _log.error(
            "MongoDB at %s: %d points, %d media and the end of this run are not delivered; they are kept in %s; "
            "deliver them with: python -m runs sync %s",
            self.destination.label,
            len_points(self._folder) if delivery is None else delivery.num_missing(),
            len_media(self._folder) if delivery is None else delivery.num_missing_media(),
            self._folder,
            self._folder.parent if self._spool is None else self.spool_dir,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MongoObserver) and self.destination == other.destination

    __hash__ = None


def _as_number(wanted: Any) -> Any:
    return int(wanted) if isinstance(wanted, str) and wanted.isdigit() else wanted if isinstance(wanted, int) else None
