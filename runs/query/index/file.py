"""The file of an index, which may be lost, damaged or locked at any time, and the places where it may lie."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from runs.errors import StoreError
from runs.query.index.fields import residual
from runs.query.index.folders import require_folder
from runs.query.patterns import is_found

__all__ = ["IndexFile", "clear", "transaction"]

Result = TypeVar("Result")

# Raised with every change of the tables or of what is put into them.
VERSION = 7
# Tells the file from what other programs keep in SQLite.
_APPLICATION = 0x5AC51DEC
_TABLES = """
CREATE TABLE run(id INTEGER PRIMARY KEY, name NOT NULL UNIQUE, number INTEGER, stamp TEXT NOT NULL,
    digest BLOB NOT NULL, origins INTEGER NOT NULL, is_readable INTEGER NOT NULL, problems TEXT);
CREATE TABLE wanted_origin(origin INTEGER PRIMARY KEY, is_complete INTEGER NOT NULL);
CREATE TABLE key(id INTEGER PRIMARY KEY, origin INTEGER NOT NULL, name TEXT NOT NULL, UNIQUE(name, origin));
CREATE TABLE field(key INTEGER NOT NULL, run INTEGER NOT NULL, kind INTEGER NOT NULL, value,
    PRIMARY KEY(key, run)) WITHOUT ROWID;
"""
# What a question needs while it is answered: dead runs, runs that were chosen, and the values of its `in` conditions.
_TEMPORARY = """
CREATE TEMP TABLE dead(run INTEGER PRIMARY KEY);
CREATE TEMP TABLE lasting(run INTEGER PRIMARY KEY, seconds REAL);
CREATE TEMP TABLE chosen(run INTEGER PRIMARY KEY);
CREATE TEMP TABLE wanted(number INTEGER NOT NULL, kind INTEGER NOT NULL, value,
    PRIMARY KEY(number, kind, value)) WITHOUT ROWID;
"""
# How long to wait for the lock, which an honest writer holds for half a second.
_BUSY_S = 60.0
# The pages that a connection keeps; eight times as many while a new file is filled.
_CACHE_KIB = 8192
# The file itself is bad. Everything else that SQLite says is the fault of the place where it lies.
_DAMAGED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH}
_DAMAGED |= {sqlite3.SQLITE_CONSTRAINT}
# Or a statement is more than SQLite takes.
_REFUSED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE}


class IndexFile:
    """The SQLite file over the runs in `store`, always there: made anew when damaged, elsewhere when it must be.

    It lies in the folder itself, or where that cannot be written in the user's cache, or else in memory.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self._places = _places(store)
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._was_remade = False
        # Whether the open connection made the file, and is about to fill it.
        self._is_new = False

    @property
    def path(self) -> Path | None:
        """Path of the file; None in memory."""
        return self._places[0]

    def close(self) -> None:
        """Let go of the file; the next use opens it again."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def reliably(self, action: Callable[[sqlite3.Connection], Result]) -> Result:
        """Return what `action` does with a connection; it is done again after a failure, with a new file, elsewhere.

        Raises:
            StoreError: If there is no folder `store`, the question is more than SQLite takes, or even the memory fails.
        """
        while True:
            require_folder(self.store)
            try:
                connection = self._open()
                done = action(connection)
                if self._is_new:
                    self._shrink(connection)
                self._was_remade = False
                return done
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
                if code in _REFUSED and self._is_sound():
                    raise StoreError(f"the index over {self.store} refuses the question: {error}") from error
                self.close()
                if code == sqlite3.SQLITE_READONLY_DBMOVED:
                    continue  # somebody built it anew
                if self._was_remade or code & 0xFF not in _DAMAGED or not self._remove():
                    self._go_elsewhere(error)
            except (LookupError, TypeError, ValueError):
                # What was read from it makes no sense; unless that was not its fault.
                if self._was_remade:
                    raise
                if not self._remove():
                    self._go_elsewhere(None)

    def _shrink(self, connection: sqlite3.Connection) -> None:
        """Give back the memory that filling a new file took."""
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("PRAGMA shrink_memory")
        self._is_new = False

    def _is_sound(self) -> bool:
        """Tell whether the tables are there as they were made."""
        if self._connection is None:
            return False
        try:
            made = self._connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        except sqlite3.Error:
            return False
        wanted = [statement for statement in _TABLES.split(";") if statement.strip()]
        return sorted(sql.split() for (sql,) in made) == sorted(statement.split() for statement in wanted)

    def _remove(self) -> bool:
        """Remove a damaged file, so that the next use makes it anew; return whether that was possible."""
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
            self.close()  # somebody built it anew
        if self._connection is None:
            if self.path is not None:
                with contextlib.suppress(OSError):
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    if not self.path.exists():
                        self.path.touch()  # SQLite would deny a group to write, whatever the umask
                if self.path.exists() and not self.path.is_file():
                    raise _unusable(f"{self.path} is no regular file")  # SQLite would write to a disk that it links to
            connection = sqlite3.connect(self.path or ":memory:", timeout=_BUSY_S, isolation_level=None)
            connection.create_function("REGEXP", 2, _is_found, deterministic=True)
            connection.create_function("RESIDUAL", 1, residual, deterministic=True)
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
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("PRAGMA temp_store = MEMORY")
        # For questions; the pages of the file are in the system's memory, too. A board has several connections.
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        if _version(connection) == (0, 0):
            with transaction(connection):
                empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if empty and _version(connection) == (0, 0):
                    connection.execute(f"PRAGMA cache_size = -{8 * _CACHE_KIB}")  # all runs are about to be written
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
    """Return where the index may lie, best first; None is the memory."""
    places: list[Path | None] = [store / ".index.sqlite"]
    # Where there is no home either, the memory is left.
    with contextlib.suppress(OSError, RuntimeError):
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = cache if cache.is_absolute() else Path.home() / ".cache"
        digest = hashlib.sha256(os.fsencode(store.resolve())).hexdigest()[:20]
        places.append(folder / "sacristan" / f"index-{digest}.sqlite")
    return [*places, None]


def clear(connection: sqlite3.Connection) -> None:
    """Empty the index, in a transaction: a file that others have open must not be taken away under them."""
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
    """Hold the write lock from the start, or with DEFERRED a reader's, so that what is read stays true."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
