"""The file of an index, which may be lost, damaged or locked at any time, and the places where it can lie."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from sacristan.runs.errors import StoreError
from sacristan.runs.query.conditions import is_found
from sacristan.runs.query.index.fields import residual
from sacristan.runs.query.index.scanning import require_folder

__all__ = ["INDEX", "IndexFile", "clear", "transaction"]

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

    It lies in the folder of runs; if that is not writable, in the user's cache; else in memory.

    Args:
        is_read_only: Whether the folder is left as it is, writable or not.
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
                    self._shrink(connection)
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

    def _shrink(self, connection: sqlite3.Connection) -> None:
        """Free the memory that filling a new file took."""
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("PRAGMA shrink_memory")
        self._is_new = False

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
    """Run the block in a transaction, which an exception rolls back.

    IMMEDIATE holds the write lock from the start; DEFERRED holds a reader's, for a consistent view.
    """
    connection.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
