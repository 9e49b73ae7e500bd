"""`MongoObserver`: delivers a run to MongoDB from its journal; outages only delay it.

It is a subclass of Sacred's MongoObserver, for scripts that find their database with `isinstance`. It has the same
arguments and the same schema of `runs` and `metrics`. The run never waits for the network: a background thread reads
the journal that the run's `FileObserver` writes, and retries until it succeeds. If no FileObserver records the run, it
is recorded in a spool, which is removed once the run is delivered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import gridfs
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import PyMongoError

from sacristan.configs.importing import import_sacred

# Before anything here imports it.
import_sacred()

from sacred.observers import MongoObserver as SacredMongoObserver

from sacristan.observers.artifacts import ArtifactVersion
from sacristan.observers.artifacts.aliases import Named
from sacristan.observers.errors import ArtifactError, DestinationError
from sacristan.observers.file.observer import FileObserver
from sacristan.observers.file.recording import BeginningObserver, Recording, recording_of
from sacristan.observers.file.run_file import Beginning
from sacristan.observers.mongo import Destination, as_run_id, explain
from sacristan.observers.mongo.aliases import MongoAliases, fetch
from sacristan.observers.mongo.delivery import Delivery
from sacristan.observers.mongo.layout import Collections, Document, check_collection
from sacristan.observers.mongo.shipper import LAST_ATTEMPT_S, Shipper
from sacristan.observers.record.copies import make_shared
from sacristan.observers.record.files import lasting_path
from sacristan.observers.record.identity import new_uid
from sacristan.observers.record.points.point_log import PointLog

START_BOUND_S = 2.5
# How long the end of a run waits for a server that has answered during the run, and for one that never has.
DRAIN_BOUND_S, NEVER_ANSWERED_BOUND_S = 10.0, 1.0
DRAIN_VARIABLE = "SACRISTAN_DRAIN_S"
# Seconds between two heartbeats in the database, so that a run that sends a large artifact does not look dead.
ARTIFACTS_SLICE_S = 2.0
# Name of the folder that holds the run in a spool.
_SPOOLED = "run"


class _Spool(FileObserver):
    """Records a run in a folder of its own until it is delivered; `sacristan sync` leaves it until `let_go`."""

    _is_spool = True

    def _elsewhere(self) -> None:
        return None

    def _release(self) -> None:
        pass

    def let_go(self) -> None:
        """Let other processes deliver and remove the spool."""
        super()._release()


def _spooled(event: Callable[..., Any]) -> Callable[..., Any]:
    """Return an event that a spool handles, if there is one; `__getattr__` misses those that Sacred defines."""

    @functools.wraps(event)
    def take(self: _SpoolingObserver, *args: Any, **kwargs: Any) -> Any:
        return None if self._spool is None else event(self._spool, *args, **kwargs)

    return take


class _SpoolingObserver(BeginningObserver):
    """Base of an observer that needs a record of the run, and keeps one in a spool if no other observer does."""

    spool_dir: Path
    beat_interval_s: float | None = None
    _spool: _Spool | None = None

    def _recording_of(self, beginning: Beginning) -> Recording:
        """Return the recording of a run that begins, by an earlier observer, or by a new spool."""
        meta_info = beginning.meta_info
        if recording_of(meta_info.get("uid")) is None:
            folder = lasting_path(self.spool_dir)
            with contextlib.suppress(OSError):  # the run is recorded elsewhere
                make_shared(folder, folder.parent)
            self._spool = _Spool(folder / new_uid())
            self._spool.beat_interval_s = self.beat_interval_s
            self._spool.begin_run(beginning._replace(run_id=_SPOOLED))
        recording = recording_of(meta_info["uid"])
        if recording is None:
            raise RuntimeError(f"run {meta_info['uid']} is not recorded, so there is nothing to deliver")
        return recording

    def _close_spool(self, *, remove: bool) -> None:
        """Let other processes have the spool, if there is one, or remove it."""
        if self._spool is not None:
            if remove:
                shutil.rmtree(self._spool.basedir, ignore_errors=True)
            self._spool.let_go()

    def open_points(self) -> PointLog | None:
        """Return the spool's log; None without a spool, because another observer's log is delivered."""
        return None if self._spool is None else self._spool.open_points()

    heartbeat_event = _spooled(FileObserver.heartbeat_event)
    output_event = _spooled(FileObserver.output_event)
    log_metrics = _spooled(FileObserver.log_metrics)
    media_event = _spooled(FileObserver.media_event)
    resource_event = _spooled(FileObserver.resource_event)
    artifact_event = _spooled(FileObserver.artifact_event)
    keep_artifact = _spooled(FileObserver.keep_artifact)
    config_event = _spooled(FileObserver.config_event)
    flush_event = _spooled(FileObserver.flush_event)
    rewind_event = _spooled(FileObserver.rewind_event)
    completed_event = _spooled(FileObserver.completed_event)
    interrupted_event = _spooled(FileObserver.interrupted_event)
    failed_event = _spooled(FileObserver.failed_event)


class MongoObserver(_SpoolingObserver, SacredMongoObserver):
    """Delivers runs to a MongoDB, in the background; outages only delay them.

        ex.observers += [FileObserver("my_runs"), MongoObserver("mongodb://db.lab:27017", "sacred")]

    Without a FileObserver it records the run in a spool, which is removed once everything is delivered. If something is
    not delivered when the run has ended, `sacristan sync` delivers it.

    Args:
        url: The URL of the server; None is localhost.
        db_name: The name of the database.
        collection: The name of the collection of runs alone. Sacred has deprecated it; use `collection_prefix`.
        collection_prefix: The prefix of all collections' names, without its underscore.
        overwrite: The id of the document to take over: staged by another program such as SEML, or of a run that had
            ended before this one started, whose points and media are replaced. Entries of other programs stay. If an
            active run has the document, or it does not exist, a warning says so and under which id the run is recorded.
            A fork or a reproduction of a run overwrites nothing.
        priority: Observers with a higher priority receive events first; the FileObserver must be one of them.
        client: A client to use instead of `url`.
        failure_dir: Where the spool is; by default `my_runs/_spool`.
        checkpoints: Whether to deliver the checkpoints that the run keeps, when it has ended.
        drain_s: Seconds that the end of a run waits for the delivery, and up to 3 more for an attempt in progress; by
            default the environment variable `SACRISTAN_DRAIN_S`, otherwise 10, or 1 if the server never answered.
        **kwargs: Options of `pymongo.MongoClient`.

    Attributes:
        beat_interval_s: Seconds between two heartbeats; see `FileObserver`.

    Raises:
        DestinationError: If two arguments exclude each other, `overwrite` is not an id, or `drain_s` is not a number of
            seconds.
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
        checkpoints: bool = False,
        drain_s: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.drain_s = _drain_s(drain_s)
        if client is not None and url is not None:
            raise DestinationError("MongoObserver: got both a client and a url; give one of them")
        if collection != "runs" and collection_prefix:
            raise DestinationError("MongoObserver: got both a collection and a collection_prefix; give the prefix")
        runs = "" if collection == "runs" else check_collection(collection)
        kept = "kept" if checkpoints else ""
        self.destination = Destination(url or _address(client), db_name, collection_prefix, runs, checkpoints=kept)
        self.priority = priority
        self.spool_dir = Path(failure_dir or Path("my_runs") / "_spool")
        self.overwrite = _overwritten_id(overwrite)
        self._options = kwargs
        self._client = client
        self._has_own_client = client is None
        self._connecting = threading.Lock()
        self._shipper: Shipper | None = None
        self._is_delivered = False
        self._recording: Recording | None = None

    @classmethod
    def create_from(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Reject collections, which Sacred's observer accepts.

        Raises:
            DestinationError: Always.
        """
        raise DestinationError("MongoObserver.create_from: got collections, expected a url or a client; call the class")

    # ------------------------------------------------------------------ the database, as Sacred's observer has it

    @property
    def runs(self) -> Collection[Document]:
        """The collection of runs."""
        return self._collections().runs

    @property
    def metrics(self) -> Collection[Document]:
        """The collection of metrics."""
        return self._collections().metrics

    @property
    def fs(self) -> gridfs.GridFS:
        """The files of the database."""
        return gridfs.GridFS(self._database())

    def _collections(self) -> Collections:
        return Collections(self._database(), self.destination.prefix, self.destination.collection)

    def _disconnect(self) -> None:
        with self._connecting:
            if self._client is not None:
                self._client.close()
                self._client = None  # type: ignore[assignment]  # Sacred's is never closed

    def _database(self) -> Database[Document]:
        with self._connecting:
            if self._client is None:
                self._client = self.destination.connect(**self._options)
            return self._client[self.destination.db_name]

    # ------------------------------------------------------------------ a run begins

    def begin_run(self, beginning: Beginning) -> Any:
        """Start to deliver a run, which an earlier observer records, or a spool.

        Args:
            beginning: What Sacred passes.

        Returns:
            The run's id in the database; None if the database cannot be reached within seconds.
        """
        recording, run_id = self._recording_of(beginning), beginning.run_id
        wanted = as_run_id(run_id)
        destination = dataclasses.replace(
            self.destination,
            wanted_id=wanted if isinstance(wanted, str) else "",
            overwrite="" if self.overwrite is None else str(self.overwrite),
        )
        destination.note(recording.journal)
        self._recording = recording

        is_first = True

        def connect() -> Delivery:
            nonlocal is_first
            if self._has_own_client and not is_first:
                self._disconnect()
            is_first = False
            where = destination.prefix, wanted, destination.collection
            delivery = Delivery(
                *(recording.folder, recording.base, self._database(), *where),
                overwrite=destination.overwrite,
                with_checkpoints=bool(self.destination.checkpoints),
                patience_s=LAST_ATTEMPT_S,
            )
            delivery.artifacts_slice_s = ARTIFACTS_SLICE_S
            return delivery

        self._own()
        self._shipper = Shipper(connect, lambda: recording.folder, self.destination.label)
        self._shipper.start()
        self._shipper.attempted.wait(START_BOUND_S)
        if run_id is not None:
            return run_id
        return self._shipper.delivery.run_id if self._shipper.delivery is not None else None

    # ------------------------------------------------------------------ a run is delivered

    @property
    def label(self) -> str:
        """The database in messages, without credentials."""
        return self.destination.label

    @property
    def place(self) -> str | None:
        """The database in messages, once all of the run is delivered there; None until then."""
        return self.label if self._is_delivered else None

    @property
    def loss(self) -> str:
        """What the record of an ended run lacks, in words; empty if it is whole, or nothing has started."""
        return "" if self._recording is None else self._recording.loss

    def fetch_artifact(self, reference: str, root: Path) -> ArtifactVersion | None:
        """Download a version of an artifact, unless the local store has its contents; see `ArtifactSource`.

        Args:
            reference: `name`, `name:latest`, `name:v3`, `name:` and an alias, or `name@` and the start of its digest.
            root: The folder of the local store.

        Raises:
            ArtifactError: If the database cannot be reached or refuses, or the version is damaged or cannot be kept.
        """
        if self._client is None:
            return None
        try:
            return fetch(self._collections(), reference, root)
        except PyMongoError as error:
            raise ArtifactError(f"{reference}: MongoDB at {self.destination.label}: {explain(error)}") from error

    def artifact_aliases(self, name: str) -> dict[str, Named]:
        """Return what `latest` and each alias of an artifact name in the database; see `ArtifactSource`.

        Args:
            name: The artifact's name.

        Raises:
            ArtifactError: If the database cannot be reached or refuses.
        """
        if self._client is None:
            return {}
        try:
            return MongoAliases(self._collections()).named(name)
        except PyMongoError as error:
            raise ArtifactError(f"{name}: MongoDB at {self.destination.label}: {explain(error)}") from error

    def join(self) -> None:
        """Deliver the rest, within `drain_s`, and report in one line what is not delivered."""
        # Threads do not exist in a forked child, and the spool belongs to its parent.
        if self._shipper is None or self._is_copy():
            return
        shipper, self._shipper = self._shipper, None
        self._is_delivered = delivered = shipper.stop(self._bound_s(shipper))
        if self._has_own_client:
            self._disconnect()
        self._close_spool(remove=delivered)
        if not delivered and self._recording is not None:
            folder = self._recording.folder
            shipper.report_rest(folder, self.spool_dir if self._spool is not None else folder.parent)

    def _bound_s(self, shipper: Shipper) -> float:
        if self.drain_s is not None:
            return self.drain_s
        return DRAIN_BOUND_S if shipper.has_delivered else min(NEVER_ANSWERED_BOUND_S, DRAIN_BOUND_S)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MongoObserver) and self.destination == other.destination

    __hash__ = None  # type: ignore[assignment]  # as in FileObserver


def _address(client: Any) -> str | None:
    """Return the servers of a client, as a URL for messages and `sacristan sync`, which asks for the rest."""
    servers = getattr(client, "topology_description", None)
    addresses = sorted(servers.server_descriptions()) if servers is not None else ()
    return f"mongodb://{','.join(f'{host}:{port}' for host, port in addresses)}" if addresses else None


def _overwritten_id(overwrite: Any) -> int | None:
    if overwrite is None:
        return None
    try:
        number = int(overwrite)
    except (TypeError, ValueError, OverflowError):
        number = None
    is_exact = isinstance(overwrite, str) or number == overwrite
    if number is None or not is_exact or isinstance(overwrite, bool) or abs(number) >= 2**63:
        raise DestinationError(f"overwrite: got {overwrite!r}, expected the id of a run in the database, such as 3")
    return number


def _drain_s(argument: float | None) -> float | None:
    """Return the bound from the argument or the environment; None for the default."""
    name, value = ("drain_s", argument) if argument is not None else (DRAIN_VARIABLE, os.environ.get(DRAIN_VARIABLE))
    if value is None or value == "":
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise DestinationError(f"{name}: got {value!r}, expected at least 0 seconds, such as 30")
    return seconds
