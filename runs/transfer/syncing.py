"""`runs sync` and `runs reap`: what outages and killed processes have left undone."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import ConfigurationError, PyMongoError

from observers.mongo.delivery import Delivery
from observers.mongo.destination import DESTINATION_FILE, Destination, database_in, explain, read_destination
from observers.record.identity import is_alive, is_time, read_lease, true_status
from observers.record.journal import Journal
from observers.record.locking import locked
from observers.record.schema import RUN
from runs.errors import StoreError
from runs.index.folders import SPOOLED, read_json, run_folders
from runs.stores.mongo_database import MongoDatabase

__all__ = ["SyncResult", "reap", "sync"]

# An attempt ends early where somebody else delivers the same run.
_ATTEMPTS = 10


@dataclasses.dataclass(frozen=True)
class SyncResult:
    """What `sync` did with one run.

    Attributes:
        folder: The run's folder.
        outcome: `delivered`, `up to date`, `running` (its own process delivers it), `delivered by another process`,
            `removed from the database` (somebody removed it there, so it stays away), or `incomplete` (an artifact is
            damaged, or others deliver it at the same time).
        run_id: Its id in the database.
        destination: The database, without credentials.
    """

    folder: Path
    outcome: str
    run_id: Any
    destination: str


def sync(store: Path, url: str | None = None) -> Iterator[SyncResult]:
    """Deliver every run below `store` that was to go to a MongoDB and is not there as a whole; again without effect.

    Args:
        store: The folder of runs.
        url: URL to use in place of the recorded ones, such as one with credentials, which are never recorded. If it
            names a database, runs that were to go nowhere go there too.

    Raises:
        StoreError: If the database cannot be reached or refuses.
    """
    clients: dict[str | None, pymongo.MongoClient[dict[str, Any]]] = {}
    try:
        for folder in run_folders(store):
            destination = _destination(folder, url)
            if destination is not None:
                client = clients.get(destination.url) or clients.setdefault(destination.url, _connect(destination))
                yield _sync_run(folder, destination, client)
    finally:
        for client in clients.values():
            client.close()


def _connect(destination: Destination) -> pymongo.MongoClient[dict[str, Any]]:
    try:
        return destination.connect()
    except (ConfigurationError, OSError, ValueError) as error:
        raise StoreError(f"MongoDB at {destination.label}: {explain(error)}; nothing is lost, try again") from error


def _destination(folder: Path, url: str | None) -> Destination | None:
    try:
        recorded = read_destination(folder)
        if recorded is not None and not all(isinstance(one, str) for one in dataclasses.astuple(recorded)):
            raise ValueError(f"got {recorded}, expected texts")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"{folder / DESTINATION_FILE} cannot be read ({error}); remove it, or mend it") from error
    if url is None:
        return recorded
    try:
        name = database_in(url) if "://" in url else None
    except ValueError as error:
        raise StoreError(f"--url: {error}") from error
    if recorded is None:
        return Destination(url, name) if name else None
    return Destination(url, name or recorded.db_name, recorded.prefix)


def _sync_run(folder: Path, destination: Destination, client: pymongo.MongoClient[dict[str, Any]]) -> SyncResult:
    lease = read_lease(folder)
    run = read_json(folder / RUN)
    if isinstance(run, dict) and run.get("status") == "RUNNING" and lease is not None and is_alive(lease):
        return SyncResult(folder, "running", None, destination.label)
    if folder.name != SPOOLED:
        if not isinstance(run, dict):
            raise StoreError(f"{folder / RUN} cannot be read; the run cannot be delivered")
        return _deliver(folder, destination, client)
    with locked(folder):
        # Who had it before may have delivered it, and removed it.
        if not (folder / RUN).exists():
            return SyncResult(folder, "delivered by another process", None, destination.label)
        result = _deliver(folder, destination, client)
        if result.outcome == "delivered":
            shutil.rmtree(folder.parent, ignore_errors=True)
        return result


def _deliver(folder: Path, destination: Destination, client: pymongo.MongoClient[dict[str, Any]]) -> SyncResult:
    delivery = Delivery(folder, folder.parent, client[destination.db_name], destination.prefix)
    if delivery.was_completed():
        return SyncResult(folder, "up to date", delivery.run_id, destination.label)
    try:
        for _ in range(_ATTEMPTS):
            delivery.advance(last=True)
            if delivery.was_removed:
                return SyncResult(folder, "removed from the database", None, destination.label)
            if delivery.is_complete:
                return SyncResult(folder, "delivered", delivery.run_id, destination.label)
    except PyMongoError as error:
        raise StoreError(f"MongoDB at {destination.label}: {explain(error)}; nothing is lost, try again") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"the record in {folder} is damaged ({type(error).__name__}: {error})") from error
    return SyncResult(folder, "incomplete", delivery.run_id, destination.label)


def reap(store: Path) -> Iterator[tuple[Path, str]]:
    """Write DEAD into every run below `store` that says RUNNING and whose process is gone; yield folder and uid.

    Raises:
        StoreError: If there is no such folder, or a record cannot be written.
    """
    for folder in run_folders(store):
        if _is_dead(read_json(folder / RUN), read_lease(folder)):
            uid = _reap(folder)
            if uid is not None:
                yield folder, uid


def _is_dead(run: Any, lease: Any) -> bool:
    return isinstance(run, dict) and run.get("status") == "RUNNING" and true_status(run, lease) == "DEAD"


def _reap(folder: Path) -> str | None:
    """Write DEAD into a run whose process is gone, and return its uid; None if it goes on."""
    try:
        with locked(folder, wait=False) as lock:
            run, lease = read_json(folder / RUN), read_lease(folder, lock)
            if lease is None or not _is_dead(run, lease):
                return None
            stopped = datetime.fromtimestamp(lease["heartbeat"], UTC).replace(tzinfo=None).isoformat()
            journal = Journal(folder)
            journal.write(RUN, {**run, "status": "DEAD", "stop_time": stopped, "heartbeat": stopped})
            journal.close()
    except BlockingIOError:  # another process continues the run, or removes it
        return None
    if journal.num_failures:
        raise StoreError(f"{folder} cannot be written; check its permissions and the disk")
    return run.get("uid", "")


def reap_database(where: str) -> Iterator[tuple[Any, str]]:
    """Do as `reap` does in a database; yield id and uid.

    Args:
        where: Its URL, as for `open_store`.

    Raises:
        StoreError: If the database cannot be reached or refuses.
    """
    url, _, prefix = where.partition("#")
    with contextlib.closing(MongoDatabase(url, prefix)) as mongo, mongo.errors():
        wanted = dict.fromkeys(("status", "lease", "uid", "heartbeat", "start_time"), 1)
        for run in mongo.runs.find({"status": "RUNNING", "lease": {"$exists": True}}, wanted):
            if true_status(run, run["lease"]) == "DEAD":
                change = {"$set": {"status": "DEAD", "stop_time": _last_sign(run)}}
                mongo.runs.update_one({"_id": run["_id"], "status": "RUNNING", "lease": run["lease"]}, change)
                yield run["_id"], run.get("uid", "")


def _last_sign(run: Mapping[str, Any]) -> datetime | None:
    """Return when a run in a database was last known to live; None if nothing of it tells."""
    heartbeat = run["lease"].get("heartbeat")
    if is_time(heartbeat):
        return datetime.fromtimestamp(heartbeat, UTC).replace(tzinfo=None)
    return run.get("heartbeat") or run.get("start_time")
