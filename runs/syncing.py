"""`runs sync` and `runs reap`: what outages and killed processes have left undone."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import ConfigurationError, PyMongoError

from observers.delivery import Delivery
from observers.destination import Destination, explain, read_destination
from observers.identity import is_alive
from observers.journal import Journal
from observers.schema import RUN
from runs.errors import StoreError
from runs.folders import SPOOLED, lease_of, read_json, run_folders, true_status

__all__ = ["SyncResult", "reap", "sync"]


@dataclasses.dataclass(frozen=True)
class SyncResult:
    """What `sync` did with one run.

    Attributes:
        folder: The run's folder.
        outcome: `delivered`, `up to date`, `running` (its own process delivers it), or `incomplete` (an artifact is
            damaged).
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
    clients: dict[str | None, pymongo.MongoClient] = {}
    try:
        for folder in run_folders(store):
            destination = _destination(folder, url)
            if destination is not None:
                client = clients.get(destination.url) or clients.setdefault(destination.url, destination.connect())
                yield _sync_run(folder, destination, client)
    except ConfigurationError as error:
        raise StoreError(f"--url: {explain(error)}") from error
    finally:
        for client in clients.values():
            client.close()


def _destination(folder: Path, url: str | None) -> Destination | None:
    recorded = read_destination(folder)
    if url is None:
        return recorded
    name = pymongo.uri_parser.parse_uri(url)["database"] if "://" in url else None
    if recorded is None:
        return Destination(url, name) if name else None
    return Destination(url, name or recorded.db_name, recorded.prefix)


def _sync_run(folder: Path, destination: Destination, client: pymongo.MongoClient) -> SyncResult:
    lease = lease_of(folder)
    run = read_json(folder / RUN)
    if run is None:
        raise StoreError(f"{folder / RUN} cannot be read; the run cannot be delivered")
    if run["status"] == "RUNNING" and lease is not None and is_alive(lease):
        return SyncResult(folder, "running", None, destination.label)
    delivery = Delivery(folder, folder.parent, client[destination.db_name], destination.prefix)
    if delivery.was_completed():
        return SyncResult(folder, "up to date", delivery.run_id, destination.label)
    try:
        delivery.advance()
        if not delivery.is_complete:
            delivery.advance()
    except PyMongoError as error:
        raise StoreError(f"MongoDB at {destination.label}: {explain(error)}; nothing is lost, try again") from error
    complete = delivery.is_complete
    if complete and folder.name == SPOOLED:
        shutil.rmtree(folder.parent, ignore_errors=True)
    return SyncResult(folder, "delivered" if complete else "incomplete", delivery.run_id, destination.label)


def reap(store: Path) -> Iterator[tuple[Path, str]]:
    """Write DEAD into every run below `store` that says RUNNING and whose process is gone; yield folder and uid."""
    for folder in run_folders(store):
        run, lease = read_json(folder / RUN), lease_of(folder)
        if run is None or run.get("status") != "RUNNING" or true_status(run, lease) != "DEAD":
            continue
        stopped = datetime.fromtimestamp(lease["heartbeat"], UTC).replace(tzinfo=None).isoformat()
        journal = Journal(folder)
        journal.write(RUN, {**run, "status": "DEAD", "stop_time": stopped, "heartbeat": stopped})
        journal.close()
        if journal.num_failures:
            raise StoreError(f"{folder} cannot be written; check its permissions and the disk")
        yield folder, run.get("uid", "")


def reap_database(url: str) -> Iterator[tuple[Any, str]]:
    """Do as `reap` does in a database; yield id and uid."""
    name = pymongo.uri_parser.parse_uri(url)["database"] or "sacred"
    destination = Destination(url, name)
    with destination.connect() as client:
        collection = client[name]["runs"]
        try:
            for run in collection.find({"status": "RUNNING", "lease": {"$exists": True}}, {"lease": 1, "uid": 1}):
                if not is_alive(run["lease"]):
                    stopped = datetime.fromtimestamp(run["lease"]["heartbeat"], UTC).replace(tzinfo=None)
                    change = {"$set": {"status": "DEAD", "stop_time": stopped}}
                    collection.update_one({"_id": run["_id"], "status": "RUNNING", "lease": run["lease"]}, change)
                    yield run["_id"], run.get("uid", "")
        except PyMongoError as error:
            raise StoreError(f"MongoDB at {destination.label}: {explain(error)}") from error
