"""Runs that outages and killed processes left unfinished: `sync` delivers them, `reap` marks them as DEAD."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pymongo
from pymongo.database import Database
from pymongo.errors import ConfigurationError, ConnectionFailure, PyMongoError

from sacristan.observers.mongo import Destination, database_in, explain, is_refusal, is_unconfirmed, read_destination
from sacristan.observers.mongo.delivery import Delivery, noted_delivery
from sacristan.observers.record.folders import RecordLock, locked
from sacristan.observers.record.identity import is_alive, last_beat, read_lease, true_status
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.points.intact_points import has_latest_points
from sacristan.observers.record.schema import DESTINATION, RUN, newer_format, read_json_if_whole
from sacristan.runs.errors import StoreAwayError, StoreError
from sacristan.runs.query.index.scanning import SPOOLED, run_folders
from sacristan.runs.stores.opening import open_store
from sacristan.runs.transfer.copying import copy

_log = logging.getLogger(__name__)

# Schemes of the databases that an observer delivers to; other stores receive copies of ended runs.
_DELIVERED = ("mongodb://", "mongodb+srv://")
_UNFINISHED = ("RUNNING", "QUEUED", "HELD", "DEAD", "INTERRUPTED")
# An attempt ends early while another process delivers the same run.
_ATTEMPTS = 10


@dataclasses.dataclass(frozen=True)
class SyncResult:
    """Result of `sync` for one run.

    Attributes:
        folder: The run's folder.
        outcome: `delivered`, `up to date`, `running` (its own process delivers it), `delivered by another process`,
            `removed from the database` (a person removed it there, so it is not sent again), `incomplete` (an artifact
            is damaged, or another process delivers it at the same time), or `failed`.
        run_id: Its id in the database.
        destination: The database, without credentials; empty if it cannot be read.
        error: Why it failed, and what to do next; None if it did not.
    """

    folder: Path
    outcome: str
    run_id: Any
    destination: str
    error: str | None = None

    @property
    def is_bad(self) -> bool:
        """True if the run should be completely in the database and is not."""
        return self.outcome in ("failed", "incomplete")


def sync(folder: str | Path, url: str | None = None) -> list[SyncResult]:
    """Deliver every run in a folder whose MongoDB database lacks a part of it; a second call changes nothing.

    Args:
        folder: The folder of runs; runs of a `MongoObserver` whose database was away lie in its `failure_dir`.
        url: A URL to use instead of the recorded ones, for example with credentials, which are never recorded. If it
            names a database, runs without a recorded one go there, too. A store of another package receives a copy of
            each run that has ended.

    Returns:
        A result for each run that belongs into a database, delivered or not. A run that is damaged, or whose database
        is away, does not stop the others.

    Raises:
        StoreError: If there is no such folder, or the URL is malformed.

    Example:
        for result in sync("my_runs"):
            print(result.folder, result.outcome, result.run_id, result.error or "")
    """
    return list(deliveries(Path(folder), url))


def deliveries(folder: Path, url: str | None = None, only: Iterable[Path] | None = None) -> Iterator[SyncResult]:
    """Deliver all runs or `only` those in some folders as `sync` does, and yield each result at once."""
    if url is not None and "://" in url and not url.startswith(_DELIVERED):
        yield from _copies(folder, url, only)
        return
    db_name = _parse(url)
    reached: dict[str, Destination] = {}
    with contextlib.ExitStack() as stack:
        servers: dict[str | None, _Server] = {}
        for run_folder in run_folders(folder) if only is None else only:
            destination = None
            try:
                destination = _destination(run_folder, url, db_name)
                if destination is None:
                    continue
                if destination.url not in servers:
                    servers[destination.url] = stack.enter_context(contextlib.closing(_Server(destination)))
                result = _sync_run(run_folder, destination, servers[destination.url])
                reached[destination.address] = destination
            except StoreError as error:
                result = SyncResult(run_folder, "failed", None, destination.label if destination else "", str(error))
            yield result
    _carry_aliases(folder, reached)


def _carry_aliases(folder: Path, addresses: Iterable[str]) -> None:
    """Let the aliases of artifacts in databases follow those of a folder; warn of those that stay."""
    with contextlib.ExitStack() as stack:
        try:
            origin = stack.enter_context(open_store(folder, is_read_only=True))
        except StoreAwayError:  # a spool, which went when its run was delivered
            return
        moves = {name: origin.aliases.moves(name) for name in origin.backend.artifacts()}
        for address in addresses if any(moves.values()) else ():
            try:
                with open_store(address) as target:
                    for name in target.backend.artifacts():
                        for text in target.aliases.follow(name, moves.get(name, ())):
                            _log.warning("%s", text)
            except StoreError as error:
                _log.warning("aliases of artifacts are not delivered: %s", error)


def _copies(folder: Path, url: str, only: Iterable[Path] | None) -> Iterator[SyncResult]:
    """Copy ended runs into a store that no observer delivers to, and yield each result at once."""
    wanted = None if only is None else {path.resolve() for path in only}
    with open_store(folder) as origin, open_store(url, create=True) as target:
        for run in origin.find(sort="id"):
            if run.folder is None or not (wanted is None or run.folder.resolve() in wanted):
                continue
            if run.status in _UNFINISHED:
                yield SyncResult(run.folder, "running", None, target.where)
                continue
            try:
                copied = copy(run, target)
            except StoreError as error:
                yield SyncResult(run.folder, "failed", None, target.where, str(error))
            else:
                outcome = "delivered" if copied.is_new else "up to date"
                yield SyncResult(run.folder, outcome, copied.run.id, target.where)


class _Server:
    """A server that receives runs. If it is down, only the first run waits for it."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._client: pymongo.MongoClient[dict[str, Any]] | None = None
        self._trouble: str | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    @contextlib.contextmanager
    def database(self, destination: Destination) -> Iterator[Database[dict[str, Any]]]:
        """Open a database for the block, and turn its errors into StoreError."""
        if self._client is None and self._trouble is None:
            try:
                self._client = self._destination.connect()
            except (ConfigurationError, OSError, ValueError) as error:
                self._trouble = explain(error)
        if self._client is None or self._trouble is not None:
            raise _undelivered(destination, self._trouble)
        try:
            yield self._client[destination.db_name]
        except PyMongoError as error:
            if isinstance(error, ConnectionFailure) or is_refusal(error) or is_unconfirmed(error):
                self._trouble = explain(error)
            raise _undelivered(destination, explain(error)) from error


def _undelivered(destination: Destination, reason: str | None) -> StoreError:
    return StoreError(f"MongoDB at {destination.label}: {reason}; nothing is lost, try again")


def _parse(url: str | None) -> str | None:
    """Return the name of the database in a URL, if there is one; raise a StoreError if the URL is malformed."""
    try:
        return database_in(url) if url is not None and "://" in url else None
    except ValueError as error:
        raise StoreError(f"--url: {error}") from error


def undelivered(folder: Path) -> str | None:
    """Return the label of the database that a run is still to be delivered to; None if it is there, or goes nowhere."""
    destination = read_destination(folder)
    return None if destination is None or noted_delivery(folder) is not None else destination.label


def _destination(folder: Path, url: str | None, name: str | None) -> Destination | None:
    """Return where to deliver a run; a `url` with the database `name` replaces the recorded one."""
    recorded = _recorded_destination(folder)
    if url is None:
        return recorded
    if recorded is None:
        return Destination(url, name) if name else None
    if name not in (None, recorded.db_name):  # in another database, the document of that id is another one
        recorded = dataclasses.replace(recorded, overwrite="", overwrote="")
    return dataclasses.replace(recorded, url=url, db_name=name or recorded.db_name)


def _recorded_destination(folder: Path) -> Destination | None:
    try:
        recorded = read_destination(folder)
        if recorded is not None and not all(isinstance(one, str) for one in dataclasses.astuple(recorded)):
            raise ValueError(f"got {recorded}, expected texts")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"{folder / DESTINATION} cannot be read ({error}); remove it, or mend it") from error
    return recorded


def _sync_run(folder: Path, destination: Destination, server: _Server) -> SyncResult:
    lease = read_lease(folder)
    run = read_json_if_whole(folder / RUN)
    if newer := newer_format(run):
        raise StoreError(f"{folder} cannot be delivered: {newer}")
    if isinstance(run, dict) and run.get("status") == "RUNNING" and lease is not None and is_alive(lease):
        return SyncResult(folder, "running", None, destination.label)
    if folder.name != SPOOLED:
        if not isinstance(run, dict):
            raise StoreError(f"{folder / RUN} cannot be read; the run cannot be delivered")
        # A process that holds the lock resumes the run, and recovers the points itself.
        with contextlib.suppress(BlockingIOError), locked(folder, wait=False) as lock:
            _recover(folder, lock)
        return _deliver(folder, destination, server)
    with locked(folder) as lock:
        # The previous holder may have delivered and removed it.
        if not (folder / RUN).exists():
            return SyncResult(folder, "delivered by another process", None, destination.label)
        _recover(folder, lock)
        result = _deliver(folder, destination, server)
        if result.outcome in ("delivered", "started elsewhere"):
            shutil.rmtree(folder.parent, ignore_errors=True)
        return result


def _recover(folder: Path, lock: RecordLock) -> None:
    """Recover the latest points of a killed process, if there are any; `lock` is held on the record."""
    lease = read_lease(folder, lock)
    if not has_latest_points(folder) or (lease is not None and is_alive(lease)):
        return
    journal = Journal(folder)
    try:
        journal.recover()
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder}: its latest points cannot be taken in ({error}); check the disk") from error
    finally:
        journal.close()


def _deliver(folder: Path, destination: Destination, server: _Server) -> SyncResult:
    try:
        with server.database(destination) as database:
            wanted = destination.wanted_id or None
            delivery = Delivery(
                *(folder, folder.parent, database, destination.prefix, wanted, destination.collection),
                overwrite=destination.overwrite,
                with_checkpoints=bool(destination.checkpoints),
            )
            # A spool is removed, so it is confirmed again.
            is_noted = folder.name != SPOOLED and delivery.was_completed()
            outcome = "up to date" if is_noted else _advance(delivery)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"the record in {folder} is damaged ({type(error).__name__}: {error})") from error
    return SyncResult(folder, outcome, delivery.run_id, destination.label)


def _advance(delivery: Delivery) -> str:
    for _ in range(_ATTEMPTS):
        delivery.advance(last=True)
        if delivery.was_removed:
            return "removed from the database"
        if delivery.was_started:
            return "started elsewhere"
        if delivery.is_complete:
            return "delivered"
    return "incomplete"


class Reaped(NamedTuple):
    """A run that was marked as DEAD.

    Attributes:
        run: Its folder; in another store its `Run.key`.
        uid: Its uid.
    """

    run: Any
    uid: str


def reap(where: str | Path) -> list[Reaped]:
    """Record DEAD in every run whose record says RUNNING and whose process is gone.

    The lab shows such a run as DEAD anyway; the new record tells programs made for Sacred, too. A process on another
    machine counts as gone when its heartbeats have stopped for long enough.

    Args:
        where: A folder of runs, or the URL of a store, such as `mongodb://` with the database's name.

    Returns:
        The runs that were marked.

    Raises:
        StoreError: If a record cannot be written, or the database cannot be reached or refuses.

    Example:
        for run, uid in reap("my_runs"):
            print(run, uid)
    """
    where = str(where)
    return list(_reap_others(where) if "://" in where else _reap_folders(Path(where)))


def _reap_folders(store: Path) -> Iterator[Reaped]:
    for folder in run_folders(store):
        if _is_dead(read_json_if_whole(folder / RUN), read_lease(folder)):
            if not os.access(folder, os.W_OK):  # in a shared folder, whose other runs are marked all the same
                _log.warning("%s is dead, and may not be written; it is left to its user", folder)
                continue
            uid = _reap(folder)
            if uid is not None:
                yield Reaped(folder, uid)


def _is_dead(run: Any, lease: Any) -> bool:
    is_known = isinstance(run, dict) and not newer_format(run)
    return is_known and run.get("status") == "RUNNING" and true_status(run, lease) == "DEAD"


def _reap(folder: Path) -> str | None:
    """Record DEAD in a run whose process is gone, and return its uid; None if the process lives."""
    try:
        with locked(folder, wait=False) as lock:
            run, lease = read_json_if_whole(folder / RUN), read_lease(folder, lock)
            if run is None or lease is None or not _is_dead(run, lease):
                return None
            _recover(folder, lock)
            beat = last_beat(lease)
            stopped = None if beat is None else beat.isoformat()
            journal = Journal(folder)
            journal.write(RUN, {**run, "status": "DEAD", "stop_time": stopped, "heartbeat": stopped})
            journal.close()
    except BlockingIOError:  # another process resumes the run, or removes it
        return None
    if journal.num_failures:
        raise StoreError(f"{folder} cannot be written; check its permissions and the disk")
    return run.get("uid", "")


def _reap_others(url: str) -> Iterator[Reaped]:
    with open_store(url) as store:
        for run in store.find("status=DEAD", columns=("uid",)):
            if store.backend.documents.change("status", "", _as_dead, run.key):
                yield Reaped(run.key, run.uid or "")


def _as_dead(now: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a run whose process is gone, if it says RUNNING."""
    lease = now.get("lease")
    if lease is None or not _is_dead(now, lease):
        return now
    beat = last_beat(lease)
    return {**now, "status": "DEAD", **({} if beat is None else {"stop_time": beat.isoformat()})}
