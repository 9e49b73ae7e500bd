"""The file of an index, which may be lost, damaged or locked at any time, its places, and runs written into it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sacristan.observers.record.json_text import is_large
from sacristan.runs.errors import StoreError
from sacristan.runs.query import id_of
from sacristan.runs.query.conditions import is_found
from sacristan.runs.query.index import scanning
from sacristan.runs.query.index.fields import OF_RUN, ORIGINS, Documents, fields_of, read_documents, residual
from sacristan.runs.query.index.scanning import require_folder

Result = TypeVar("Result")

# The name of the index in a folder of runs.
INDEX = ".index.sqlite"

# Raised with every change of the tables or their content.
VERSION = 7
# Distinguishes the file from other programs' SQLite files.
_APPLICATION = 0x5AC51DEC
_TABLES = """
CREATE TABLE run(id INTEGER PRIMARY KEY, name NOT NULL UNIQUE, number INTEGER, stamp TEXT NOT NULL,
    digest BLOB NOT NULL, origins INTEGER NOT NULL, is_readable INTEGER NOT NULL, problems TEXT);
CREATE TABLE wanted_origin(origin INTEGER PRIMARY KEY, is_complete INTEGER NOT NULL);
CREATE TABLE key(id INTEGER PRIMARY KEY, origin INTEGER NOT NULL, name TEXT NOT NULL, UNIQUE(name, origin));
CREATE TABLE field(key INTEGER NOT NULL, run INTEGER NOT NULL, kind INTEGER NOT NULL, value,
    PRIMARY KEY(key, run)) WITHOUT ROWID;
"""
# For one question: dead runs, the duration of running ones, chosen runs, and the values of `in` conditions.
_TEMPORARY = """
CREATE TEMP TABLE dead(run INTEGER PRIMARY KEY);
CREATE TEMP TABLE lasting(run INTEGER PRIMARY KEY, seconds REAL);
CREATE TEMP TABLE chosen(run INTEGER PRIMARY KEY);
CREATE TEMP TABLE wanted(number INTEGER NOT NULL, kind INTEGER NOT NULL, value,
    PRIMARY KEY(number, kind, value)) WITHOUT ROWID;
"""
# Time to wait for the lock, which a writer holds for half a second.
_BUSY_S = 60.0
# Page cache of a connection; eight times as much while a new file is filled.
_CACHE_KIB = 8192
# Errors of the file itself; all others are the fault of the place where it lies.
_DAMAGED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH}
_DAMAGED |= {sqlite3.SQLITE_CONSTRAINT}
# Or a statement exceeds a limit of SQLite.
_REFUSED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE}


class IndexFile:
    """The SQLite file of an index, which is rebuilt when damaged and moves when its place fails.

    It lies in the folder of runs; if that is not writable or `is_read_only`, in the user's cache; else in memory.
    """

    def __init__(self, store: Path, *, is_read_only: bool = False) -> None:
        self.store = store
        self._places = _places(store)[is_read_only:]
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._was_remade = False
        # Whether the open connection created the file, and is about to fill it.
        self._is_new = False

    @property
    def path(self) -> Path | None:
        """The file; None in memory."""
        return self._places[0]

    @property
    def inode(self) -> tuple[int, int] | None:
        """Device and inode of the open file; None in memory, or before it is opened."""
        return self._inode

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def reliably(self, action: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run an action, which must be repeatable; after a failure, repeat it with a new file or in another place.

        If the folder of runs is gone, the question exceeds SQLite's limits, or even memory fails, this raises
        StoreError.
        """
        while True:
            require_folder(self.store)
            try:
                connection = self._open()
                result = action(connection)
                if self._is_new:
                    # Free the memory that filling it took.
                    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
                    connection.execute("PRAGMA shrink_memory")
                    self._is_new = False
                self._was_remade = False
                return result
            except sqlite3.Error as error:
                self._recover(error)
            except (LookupError, TypeError, ValueError):
                # The file's content is invalid; if it is new, the fault lies elsewhere.
                if self._was_remade:
                    raise
                if not self._remove():
                    self._go_elsewhere(None)

    def _recover(self, error: sqlite3.Error) -> None:
        """Prepare another try after an error, or raise a StoreError."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code in _REFUSED and self._is_sound():
            raise StoreError(f"the index over {self.store} refuses the question: {error}") from error
        self.close()
        is_moved = code == sqlite3.SQLITE_READONLY_DBMOVED  # another process rebuilt it
        if not is_moved and (self._was_remade or code & 0xFF not in _DAMAGED or not self._remove()):
            self._go_elsewhere(error)

    def _is_sound(self) -> bool:
        """Tell whether the tables are as they were created."""
        if self._connection is None:
            return False
        try:
            made = self._connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        except sqlite3.Error:
            return False
        wanted = [statement for statement in _TABLES.split(";") if statement.strip()]
        return sorted(sql.split() for (sql,) in made) == sorted(statement.split() for statement in wanted)

    def _remove(self) -> bool:
        """Remove a damaged file, so that the next use creates a new one; return whether that was possible."""
        self.close()
        self._was_remade = True
        if self.path is None:
            return True
        try:
            for ending in ("", "-journal", "-wal", "-shm"):
                Path(f"{self.path}{ending}").unlink(missing_ok=True)
        except OSError:
            return False
        return True

    def _go_elsewhere(self, error: Exception | None) -> None:
        if len(self._places) == 1:
            raise StoreError(f"the index over {self.store} fails even in memory: {error}") from error
        del self._places[0]
        self._was_remade = False

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._inode != _inode(self.path):
            self.close()  # another process rebuilt it
        if self._connection is None:
            self._connection, self._inode = self._connect()
        return self._connection

    def _connect(self) -> tuple[sqlite3.Connection, tuple[int, int] | None]:
        """Open the file, created if need be, and return the connection and the file's inode."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if not self.path.exists():
                    self.path.touch()  # SQLite would ignore the umask and deny writing to a group
            if self.path.exists() and not self.path.is_file():
                raise _unusable(f"{self.path} is no regular file")  # SQLite would follow a link to a disk
        connection = sqlite3.connect(self.path or ":memory:", timeout=_BUSY_S, isolation_level=None)
        connection.create_function("REGEXP", 2, _is_found, deterministic=True)
        connection.create_function("RESIDUAL", 1, residual, deterministic=True)
        inode = _inode(self.path)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection, inode

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # A write-ahead log needs shared memory, which network file systems lack.
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("PRAGMA temp_store = MEMORY")
        # Small, as the system caches the file too, and a board has several connections.
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        if _version(connection) == (0, 0):
            with transaction(connection):
                empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if empty and _version(connection) == (0, 0):
                    connection.execute(f"PRAGMA cache_size = -{8 * _CACHE_KIB}")  # for writing all runs
                    self._is_new = True
                    _make_tables(connection)
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    connection.execute(f"PRAGMA user_version = {VERSION}")
        if _version(connection) != (_APPLICATION, VERSION):
            raise sqlite3.DatabaseError("an index of another version")
        for statement in _TEMPORARY.split(";"):
            connection.execute(statement)


def _unusable(why: str) -> sqlite3.Error:
    error = sqlite3.OperationalError(why)
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    return error


def _is_found(pattern: str, value: Any) -> bool:
    return isinstance(value, str) and is_found(pattern, value)


def _places(store: Path) -> list[Path | None]:
    """Return the places where the index can lie, best first; None is memory."""
    places: list[Path | None] = [store / INDEX]
    # Without a home only memory is left.
    with contextlib.suppress(OSError, RuntimeError):
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = cache if cache.is_absolute() else Path.home() / ".cache"
        digest = hashlib.sha256(os.fsencode(store.resolve())).hexdigest()[:20]
        places.append(folder / "sacristan" / f"index-{digest}.sqlite")
    return [*places, None]


def clear(connection: sqlite3.Connection) -> None:
    """Empty the index inside a transaction: other processes may have the file open, so it must not be deleted."""
    for table in ("run", "wanted_origin", "key", "field"):
        connection.execute(f"DROP TABLE {table}")
    _make_tables(connection)


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _TABLES.split(";"):
        connection.execute(statement)


def _inode(path: Path | None) -> tuple[int, int] | None:
    try:
        info = path.stat() if path is not None else None
    except OSError:
        return None
    return info and (info.st_dev, info.st_ino)


def _version(connection: sqlite3.Connection) -> tuple[int, int]:
    return tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Run the block in a transaction, rolled back on an error; IMMEDIATE locks other writers out at once."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


# How long one batch holds the lock.
_BATCH_S = 0.5
# Rows per statement: one statement each would take twice as long.
_ROWS_AT_ONCE = 50
_WRITE = "INSERT OR REPLACE INTO field VALUES "


class _Entry(NamedTuple):
    """A run as the index has it."""

    id: int
    stamp: str
    digest: bytes
    origins: int  # a bit for each origin whose fields are there
    is_readable: bool


class Batch:
    """Runs that one transaction, which is open on the connection, writes into the index."""

    def __init__(self, connection: sqlite3.Connection, store: Path) -> None:
        self.connection = connection
        self.store = store
        self.taken: dict[str, str] = {}  # stamps of the runs that were written, by name
        self.gone: list[str] = []  # names of the runs that were removed
        self.num_read = 0  # runs that were new or had changed
        self._origins = {OF_RUN, *(origin for (origin,) in connection.execute("SELECT origin FROM wanted_origin"))}
        self._keys: list[dict[str, int]] = [{} for _ in ORIGINS]
        for number, origin, name in connection.execute("SELECT id, origin, name FROM key"):
            self._keys[origin][name] = number
        # By key, the four values of each row, one row after the other.
        self._rows: dict[int, list[Any]] = defaultdict(list)

    def take(self, names: list[str]) -> list[str]:
        """Bring runs up to date for half a second, but at least one; return the names that are left."""
        until = time.monotonic() + _BATCH_S
        done = 0
        while done < len(names) and (done == 0 or time.monotonic() < until):
            self._take(names[done])
            done += 1
        size = 4 * _ROWS_AT_ONCE
        many = _WRITE + ", ".join(["(?, ?, ?, ?)"] * _ROWS_AT_ONCE)
        for key in sorted(self._rows):  # rows of a key lie together
            values = self._rows[key]
            whole = len(values) - len(values) % size
            for start in range(0, whole, size):
                self.connection.execute(many, values[start : start + size])
            if whole < len(values):
                rest = ", ".join(["(?, ?, ?, ?)"] * ((len(values) - whole) // 4))
                self.connection.execute(_WRITE + rest, values[whole:])
        return names[done:]

    def _take(self, name: str) -> None:
        query = "SELECT id, stamp, digest, origins, is_readable FROM run WHERE name = ?"
        row = self.connection.execute(query, (_storable(name),)).fetchone()
        entry = _Entry(*row) if row else None
        # The stamp is older than the content, so that the next update sees a change in between.
        stamp = scanning.look(self.store, name)
        if stamp is None:
            if entry is not None:
                self._remove(name, entry.id)
            return
        if entry is None:
            self._insert(name, stamp)
            return
        missing = {origin for origin in self._origins if not entry.origins >> origin & 1}
        # Another process may have been quicker.
        if entry.stamp != stamp or not self._complete(name, entry, missing):
            self._update(name, entry, stamp, missing)

    def _insert(self, name: str, stamp: str) -> None:
        stamp = _settled(stamp)  # as of before the files are read
        documents = read_documents(self.store / name)
        row, fields = self._row_of(documents, documents.digest, stamp)
        query = """INSERT INTO run(stamp, digest, origins, is_readable, problems, name, number)
            VALUES (?, ?, ?, ?, ?, ?, ?)"""
        self._put(_inserted(self.connection.execute(query, (*row, _storable(name), _number(name)))), fields)
        self.taken[name] = stamp
        self.num_read += 1

    def _update(self, name: str, entry: _Entry, stamp: str, missing: set[int]) -> None:
        stamp = _settled(stamp)
        documents = read_documents(self.store / name)
        digest = documents.digest
        if entry.digest == digest and not missing:
            if entry.stamp == stamp:
                return
            self.connection.execute("UPDATE run SET stamp = ? WHERE id = ?", (stamp, entry.id))
        else:
            row, fields = self._row_of(documents, digest, stamp)
            query = "UPDATE run SET stamp = ?, digest = ?, origins = ?, is_readable = ?, problems = ? WHERE id = ?"
            self.connection.execute(query, (*row, entry.id))
            self._put_changes(entry.id, fields)
            self.num_read += entry.digest != digest
        self.taken[name] = stamp

    def _row_of(
        self, documents: Documents, digest: bytes, stamp: str
    ) -> tuple[tuple[str, bytes, int, bool, str | None], list[dict[str, tuple[int, Any]]]]:
        """Return the values of a run's row, and its fields."""
        fields, problems = fields_of(documents, self._origins)
        reasons = "; ".join(problems).encode("utf-8", "replace").decode() or None
        return (stamp, digest, _bits(self._origins), bool(fields[OF_RUN]), reasons), fields

    def _complete(self, name: str, entry: _Entry, missing: set[int]) -> bool:
        """Add the missing fields of an unchanged run; return False if they cannot all be read."""
        if not missing:
            return True
        # A run without a readable run.json has no fields.
        if entry.is_readable:
            fields, problems = fields_of(read_documents(self.store / name, missing), missing)
            if problems:
                return False
            self._put(entry.id, fields)
        self.connection.execute("UPDATE run SET origins = origins | ? WHERE id = ?", (_bits(missing), entry.id))
        return True

    def _put(self, run: int, fields: list[dict[str, tuple[int, Any]]]) -> None:
        for origin, flat in enumerate(fields):
            keys = self._keys[origin]
            for name, (kind, value) in flat.items():
                key = keys.get(name) or self._new_key(origin, name)
                self._rows[key] += (key, run, kind, value)

    def _put_changes(self, run: int, fields: list[dict[str, tuple[int, Any]]]) -> None:
        """Queue only the rows that changed, as each lies in a page of its own."""
        new = {
            self._keys[origin].get(name) or self._new_key(origin, name): encoded
            for origin, flat in enumerate(fields)
            for name, encoded in flat.items()
        }
        query = "SELECT key, kind, value FROM field WHERE key IN (SELECT id FROM key) AND run = ?"
        old = {key: (kind, value) for key, kind, value in self.connection.execute(query, (run,))}
        gone = [(key, run) for key in old.keys() - new.keys()]
        self.connection.executemany("DELETE FROM field WHERE key = ? AND run = ?", gone)
        for key, (kind, value) in new.items():
            # Compare types as well: 1 == 1.0 in Python.
            if old.get(key) != (kind, value) or type(old[key][1]) is not type(value):
                self._rows[key] += (key, run, kind, value)

    def _new_key(self, origin: int, name: str) -> int:
        query = "INSERT INTO key(origin, name) VALUES (?, ?)"
        number = _inserted(self.connection.execute(query, (origin, name)))
        self._keys[origin][name] = number
        return number

    def _remove(self, name: str, run: int) -> None:
        # By (key, run): an index by run would double the file to speed up a rare change.
        self.connection.execute("DELETE FROM field WHERE key IN (SELECT id FROM key) AND run = ?", (run,))
        self.connection.execute("DELETE FROM run WHERE id = ?", (run,))
        self.gone.append(name)


def _settled(stamp: str) -> str:
    """Return a stamp that differs from any later one while further changes might not show in it."""
    return scanning.UNSETTLED if scanning.was_touched_just_now(stamp) else stamp


def _bits(origins: Collection[int]) -> int:
    return sum(1 << origin for origin in origins)


def _inserted(cursor: sqlite3.Cursor) -> int:
    if cursor.lastrowid is None:
        raise sqlite3.DatabaseError("an inserted row has no number")
    return cursor.lastrowid


def _number(name: str) -> int | None:
    """Return the number in a name, if SQLite can hold it."""
    number = id_of(name)
    return number if isinstance(number, int) and not is_large(number) else None


def _storable(name: str) -> str | bytes:
    """Return a file name as SQLite can store it: as bytes if it is not valid text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name
