"""An index over all runs of a folder: SQLite, built from the folders, and never the truth.

Runs that train never touch it. Whoever reads brings it up to date first, and whatever is wrong with it (damaged,
deleted, of another version) is made good by building it again. Processes may do that at once: each batch is one
transaction in which every run is looked at anew, so that none takes an older state for a newer one.

    run    name and stamp of each run (see `runs.scanning`), a hash of its documents, and what could not be read
    key    a number for every name of a field
    field  kind and value by (key, run): what a condition or a sort looks at lies side by side
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from runs import finding, scanning
from runs.errors import StoreError
from runs.fields import OF_RUN, TEXT, fields_of, read_documents
from runs.folders import lease_of, require_folder, true_status

__all__ = ["Index", "Update"]

# Raised with every change of the tables or of what is put into them.
VERSION = 1
# Tells the file from what other programs keep in SQLite.
_APPLICATION = 0x5AC51DEC
_TABLES = """
CREATE TABLE run(id INTEGER PRIMARY KEY, name NOT NULL UNIQUE, stamp TEXT NOT NULL, digest BLOB NOT NULL,
    is_readable INTEGER NOT NULL, problems TEXT);
CREATE TABLE key(id INTEGER PRIMARY KEY, origin INTEGER NOT NULL, name TEXT NOT NULL, UNIQUE(name, origin));
CREATE TABLE field(key INTEGER NOT NULL, run INTEGER NOT NULL, kind INTEGER NOT NULL, value,
    PRIMARY KEY(key, run)) WITHOUT ROWID;
"""
# How long one batch holds the lock, and how long others wait for it.
_BATCH_S, _BUSY_S = 0.5, 60.0
# The file itself is bad. Everything else that SQLite says is the fault of the place where it lies.
_DAMAGED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH}
_DAMAGED |= {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG}


@dataclasses.dataclass(frozen=True)
class Update:
    """What an update found.

    Attributes:
        num_runs: Runs in the index now, those that cannot be read among them.
        num_read: Runs that were new or had changed.
        num_removed: Runs that are gone.
        num_problems: Runs of which something cannot be read.
    """

    num_runs: int
    num_read: int
    num_removed: int
    num_problems: int


class Index:
    """The index over the runs in a folder; it serves one thread.

    It lies in the folder itself, or where that cannot be written in the user's cache, or else in memory.

    Args:
        store: The folder of runs.
    """

    def __init__(self, store: str | Path) -> None:
        self.store = Path(store)
        self._places = _places(self.store)
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._is_updated = False
        self._known: dict[str, tuple[int, str, bytes]] = {}
        self._data_version: int | None = None
        self._was_remade = False

    @property
    def path(self) -> Path | None:
        """The file it lies in; None in memory."""
        return self._places[0]

    def update(self) -> Update:
        """Take in what changed in the folder.

        Raises:
            StoreError: If the folder cannot be listed.
        """
        return self._reliably(self._update)

    def rebuild(self) -> Update:
        """Build it anew from the folders.

        Raises:
            StoreError: If the folder cannot be listed.
        """
        self.close()
        self._remake()
        return self.update()

    def find(
        self,
        conditions: Iterable[finding.Condition] = (),
        sort: str | None = None,
        limit: int | None = None,
        columns: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        """Return the runs that meet all conditions, as of the last update (the first time it is made here).

        Args:
            conditions: Triples of field, operator (`finding.OPERATORS`) and value. A field that a run does not have
                is equal to None, and meets `!=` only. Numbers, texts and booleans are never equal to each other.
            sort: A field, with a `-` ahead for the greatest first; runs without it come last. By default the name.
            limit: How many at most.
            columns: Fields to return; None stands for what a run does not have.

        Returns:
            A mapping for each run: `name`, the path of its folder below the store, and the columns. RUNNING is
            judged by the lease, now.

        Raises:
            StoreError: If a condition makes no sense.
        """
        conditions = list(conditions)

        def ask(connection: sqlite3.Connection) -> list[dict[str, Any]]:
            if not self._is_updated:
                self._update(connection)
            with _transaction(connection, "DEFERRED"):
                if "status" in {name for name, *_ in conditions} | {(sort or "").removeprefix("-")} | set(columns):
                    self._judge(connection)
                return finding.find(connection, conditions, sort, limit, columns)

        return self._reliably(ask)

    def problems(self) -> list[tuple[str, str]]:
        """Return name and reason for every run of which something could not be read."""
        query = "SELECT name, problems FROM run WHERE problems IS NOT NULL ORDER BY length(name), name"
        rows = self._reliably(lambda connection: connection.execute(query).fetchall())
        return [(os.fsdecode(name), problems) for name, problems in rows]

    def close(self) -> None:
        """Let go of the file; the next question opens it again."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._data_version = None
        self._is_updated = False

    def __enter__(self) -> Index:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ a file that may be lost at any time

    def _reliably(self, action: Callable[[sqlite3.Connection], Any]) -> Any:
        """Do something with the index, if need be with a new one, if need be elsewhere."""
        while True:
            require_folder(self.store)
            try:
                done = action(self._open())
                self._was_remade = False
                return done
            except (sqlite3.Error, _DamagedError) as error:
                self.close()
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
                moved = code == sqlite3.SQLITE_READONLY_DBMOVED
                if not moved and (self._was_remade or code & 0xFF not in _DAMAGED or not self._remake()):
                    self._go_elsewhere(error)

    def _go_elsewhere(self, error: Exception) -> None:
        if len(self._places) == 1:
            raise StoreError(f"the index over {self.store} fails even in memory: {error}") from error
        del self._places[0]
        self._was_remade = False

    def _remake(self) -> bool:
        """Remove the file; return whether that was possible."""
        self._was_remade = True
        if self.path is None:
            return True
        try:
            for ending in ("", "-journal", "-wal", "-shm"):
                Path(f"{self.path}{ending}").unlink(missing_ok=True)
        except OSError:
            return False
        return True

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._inode != _inode(self.path):
            self.close()  # somebody built it anew
        if self._connection is None:
            if self.path is not None:
                with contextlib.suppress(OSError):
                    self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path or ":memory:", timeout=_BUSY_S, isolation_level=None)
            inode = _inode(self.path)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._inode = connection, inode
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # A write-ahead log needs shared memory, which network file systems do not have.
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -65536")
        if _version(connection) == (0, 0):
            with _transaction(connection):
                empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if empty and _version(connection) == (0, 0):
                    for statement in _TABLES.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    connection.execute(f"PRAGMA user_version = {VERSION}")
        if _version(connection) != (_APPLICATION, VERSION):
            raise _DamagedError("of another version")
        connection.execute("CREATE TEMP TABLE dead(run INTEGER PRIMARY KEY)")

    # ------------------------------------------------------------------ what changed

    def _update(self, connection: sqlite3.Connection) -> Update:
        self._load_known(connection)
        known = self._known
        seen = set()
        changed = []
        for name, stamp in scanning.scan(self.store):
            seen.add(name)
            entry = known.get(name)
            if entry is None or entry[1] != stamp:
                changed.append(name)
        removed = [name for name in known if name not in seen]
        # In the order of their making, so that runs made together lie together.
        todo = sorted(changed, key=lambda name: (len(name), name)) + removed
        num_read = num_removed = 0
        while todo:
            batch = _Batch(connection, self.store)
            with _transaction(connection):
                self._load_known(connection)
                todo = batch.take(todo, self._known)
            # Only what is committed is known.
            self._known.update(batch.taken)
            for name in batch.gone:
                del self._known[name]
            num_read += batch.num_read
            num_removed += len(batch.gone)
        self._is_updated = True
        num_problems = connection.execute("SELECT count(*) FROM run WHERE problems IS NOT NULL").fetchone()[0]
        return Update(len(self._known), num_read, num_removed, num_problems)

    def _load_known(self, connection: sqlite3.Connection) -> None:
        """Load stamps and hashes of all runs, unless nobody else has written since."""
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._data_version:
            rows = connection.execute("SELECT name, id, stamp, digest FROM run")
            self._known = {os.fsdecode(name): (number, stamp, digest) for name, number, stamp, digest in rows}
            self._data_version = version

    def _judge(self, connection: sqlite3.Connection) -> None:
        """Note which of the runs that say RUNNING have no process any more."""
        query = """SELECT run.id, run.name FROM key JOIN field ON field.key = key.id JOIN run ON run.id = field.run
            WHERE key.name = 'status' AND key.origin = ? AND kind = ? AND value = 'RUNNING'"""
        dead = []
        for number, name in connection.execute(query, (OF_RUN, TEXT)).fetchall():
            lease = lease_of(self.store / os.fsdecode(name))
            # A lease that is no lease says nothing.
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
                if true_status({"status": "RUNNING"}, lease) == "DEAD":
                    dead.append((number,))
        connection.execute("DELETE FROM temp.dead")
        connection.executemany("INSERT INTO temp.dead VALUES (?)", dead)


class _DamagedError(Exception):
    """The file is none of ours, or of another version."""


class _Batch:
    """Runs that are put into the index in one transaction."""

    def __init__(self, connection: sqlite3.Connection, store: Path) -> None:
        self.connection = connection
        self.store = store
        self.taken: dict[str, tuple[int, str, bytes]] = {}
        self.gone: list[str] = []
        self.num_read = 0
        self._keys = {
            (origin, name): number for number, origin, name in connection.execute("SELECT id, origin, name FROM key")
        }
        self._rows: dict[int, list[tuple[int, int, int, Any]]] = defaultdict(list)

    def take(self, names: list[str], known: dict[str, tuple[int, str, bytes]]) -> list[str]:
        """Look at runs for a while; return the names that are left."""
        until = time.monotonic() + _BATCH_S
        done = 0
        while done < len(names) and (done == 0 or time.monotonic() < until):
            self._take(names[done], known.get(names[done]))
            done += 1
        for key in sorted(self._rows):
            self.connection.executemany("INSERT INTO field VALUES (?, ?, ?, ?)", self._rows[key])
        return names[done:]

    def _take(self, name: str, entry: tuple[int, str, bytes] | None) -> None:
        # The stamp is older than what is read, so that a change in between is seen the next time.
        stamp = scanning.stamp_of(self.store, name)
        if stamp is None:
            if entry is not None:
                self._forget(entry[0])
                self.connection.execute("DELETE FROM run WHERE id = ?", entry[:1])
                self.gone.append(name)
            return
        if entry is not None and entry[1] == stamp:
            return  # another process was quicker
        documents = read_documents(self.store / name)
        digest = documents.digest
        if scanning.was_touched_just_now(stamp):
            stamp = "just now"
        if entry is not None and entry[2] == digest:
            if entry[1] != stamp:
                self.connection.execute("UPDATE run SET stamp = ? WHERE id = ?", (stamp, entry[0]))
                self.taken[name] = (entry[0], stamp, digest)
            return
        fields, problems = fields_of(documents)
        reasons = "; ".join(problems).encode("utf-8", "replace").decode() or None
        row = (_storable(name), stamp, digest, bool(fields[OF_RUN]), reasons)
        if entry is None:
            query = "INSERT INTO run(name, stamp, digest, is_readable, problems) VALUES (?, ?, ?, ?, ?)"
            number = self.connection.execute(query, row).lastrowid
        else:
            number = entry[0]
            self._forget(number)
            query = "UPDATE run SET stamp = ?, digest = ?, is_readable = ?, problems = ? WHERE id = ?"
            self.connection.execute(query, (*row[1:], number))
        for origin, flat in enumerate(fields):
            for field, (kind, value) in flat.items():
                key = self._keys.get((origin, field)) or self._new_key(origin, field)
                self._rows[key].append((key, number, kind, value))
        self.taken[name] = (number, stamp, digest)
        self.num_read += 1

    def _new_key(self, origin: int, name: str) -> int:
        query = "INSERT INTO key(origin, name) VALUES (?, ?)"
        number = self.connection.execute(query, (origin, name)).lastrowid
        self._keys[origin, name] = number
        return number

    def _forget(self, run: int) -> None:
        # By (key, run): an index by run would double the file for the sake of the rare change.
        self.connection.execute("DELETE FROM field WHERE key IN (SELECT id FROM key) AND run = ?", (run,))


def _places(store: Path) -> list[Path | None]:
    """Return where the index may lie, best first; None is the memory."""
    places: list[Path | None] = [store / ".index.sqlite"]
    # Where there is no home either, the memory is left.
    with contextlib.suppress(OSError, RuntimeError):
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = cache if cache.is_absolute() else Path.home() / ".cache"
        digest = hashlib.sha256(os.fsencode(store.resolve())).hexdigest()[:20]
        places.append(folder / "sacristan" / f"index-{digest}.sqlite")
    return [*places, None]


def _inode(path: Path | None) -> tuple[int, int] | None:
    try:
        info = path.stat() if path is not None else None
    except OSError:
        return None
    return info and (info.st_dev, info.st_ino)


def _version(connection: sqlite3.Connection) -> tuple[int, int]:
    return tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Hold the write lock from the start, or with DEFERRED a reader's, so that what is read stays true."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _storable(name: str) -> str | bytes:
    """Return a file's name as SQLite holds it: as bytes where it is no valid text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name
