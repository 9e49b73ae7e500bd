"""Writing runs into an index, many in one transaction."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from sacristan.observers.record.json_text import is_large
from sacristan.runs.query.index import scanning
from sacristan.runs.query.index.fields import OF_RUN, ORIGINS, Documents, fields_of, read_documents
from sacristan.runs.query.names import id_of

__all__ = ["Batch"]

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
    """Runs that one transaction, which is open on the connection, writes into the index.

    Attributes:
        taken: Stamps of the runs that were written, by name.
        gone: Names of the runs that were removed.
        num_read: Number of runs that were new or had changed.
    """

    def __init__(self, connection: sqlite3.Connection, store: Path) -> None:
        self.connection = connection
        self.store = store
        self.taken: dict[str, str] = {}
        self.gone: list[str] = []
        self.num_read = 0
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
        self._write()
        return names[done:]

    def _write(self) -> None:
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
        """Queue the rows of new fields."""
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
    """Return the number of the inserted row."""
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
