"""Putting runs into an index, many in one transaction."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

from observers.record.storable import is_large
from runs.query.index import scanning
from runs.query.index.fields import OF_RUN, ORIGINS, fields_of, read_documents
from runs.query.names import id_of

__all__ = ["Batch"]

# How long one batch holds the lock.
_BATCH_S = 0.5
# Rows that one statement writes: a call for each would take twice as long.
_ROWS_AT_ONCE = 50
_WRITE = "INSERT OR REPLACE INTO field VALUES "


class Batch:
    """Runs that are put into the index in one transaction.

    Args:
        connection: To the index, with a transaction that is open.
        store: The folder of runs.

    Attributes:
        taken: The stamps of the runs that were taken in.
        gone: Runs that were removed.
        num_read: How many runs were new or had changed.
    """

    def __init__(self, connection: sqlite3.Connection, store: Path) -> None:
        self.connection = connection
        self.store = store
        self.taken: dict[str, str] = {}
        self.gone: list[str] = []
        self.num_read = 0
        self._wanted = {OF_RUN, *(origin for (origin,) in connection.execute("SELECT origin FROM wanted_origin"))}
        self._keys: list[dict[str, int]] = [{} for _ in ORIGINS]
        for number, origin, name in connection.execute("SELECT id, origin, name FROM key"):
            self._keys[origin][name] = number
        # The four values of each row, one row after the other.
        self._rows: dict[int, list[Any]] = defaultdict(list)

    def take(self, names: list[str]) -> list[str]:
        """Look at runs for a while; return the names that are left."""
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
        for key in sorted(self._rows):  # those of a key lie together
            values = self._rows[key]
            whole = len(values) - len(values) % size
            for start in range(0, whole, size):
                self.connection.execute(many, values[start : start + size])
            if whole < len(values):
                rest = ", ".join(["(?, ?, ?, ?)"] * ((len(values) - whole) // 4))
                self.connection.execute(_WRITE + rest, values[whole:])

    def _take(self, name: str) -> None:
        query = "SELECT id, stamp, digest, origins, is_readable FROM run WHERE name = ?"
        entry: tuple[int, str, bytes, int, bool] | None = self.connection.execute(query, (_storable(name),)).fetchone()
        # The stamp is older than what is read, so that a change in between is seen the next time.
        stamp = scanning.look(self.store, name)
        if stamp is None:
            if entry is not None:
                self._remove(name, entry[0])
            return
        lacking = set(self._wanted) if entry is None else {one for one in self._wanted if not entry[3] >> one & 1}
        if entry is not None and entry[1] == stamp and self._complete(name, entry[0], lacking, is_readable=entry[4]):
            return  # or another process was quicker
        documents = read_documents(self.store / name)
        digest = documents.digest
        if scanning.was_touched_just_now(stamp):
            stamp = "just now"
        if entry is not None and entry[2] == digest and not lacking:
            if entry[1] != stamp:
                self.connection.execute("UPDATE run SET stamp = ? WHERE id = ?", (stamp, entry[0]))
                self.taken[name] = stamp
            return
        fields, problems = fields_of(documents, self._wanted)
        reasons = "; ".join(problems).encode("utf-8", "replace").decode() or None
        row = (stamp, digest, _bits(self._wanted), bool(fields[OF_RUN]), reasons)
        if entry is None:
            query = """INSERT INTO run(stamp, digest, origins, is_readable, problems, name, number)
                VALUES (?, ?, ?, ?, ?, ?, ?)"""
            self._put(_inserted(self.connection.execute(query, (*row, _storable(name), _number(name)))), fields)
        else:
            query = "UPDATE run SET stamp = ?, digest = ?, origins = ?, is_readable = ?, problems = ? WHERE id = ?"
            self.connection.execute(query, (*row, entry[0]))
            self._put_what_changed(entry[0], fields)
        self.taken[name] = stamp
        self.num_read += entry is None or entry[2] != digest

    def _complete(self, name: str, run: int, lacking: set[int], *, is_readable: bool) -> bool:
        """Add the fields that a run lacks, which did not change; return whether they were read without a problem."""
        if not lacking:
            return True
        # A run without a readable run.json has no fields.
        if is_readable:
            fields, problems = fields_of(read_documents(self.store / name, lacking), lacking)
            if problems:
                return False
            self._put(run, fields)
        self.connection.execute("UPDATE run SET origins = origins | ? WHERE id = ?", (_bits(lacking), run))
        return True

    def _put(self, run: int, fields: list[dict[str, tuple[int, Any]]]) -> None:
        """Note the rows of fields that a run does not have yet."""
        for origin, flat in enumerate(fields):
            known = self._keys[origin]
            for name, (kind, value) in flat.items():
                key = known.get(name) or self._new_key(origin, name)
                self._rows[key] += (key, run, kind, value)

    def _put_what_changed(self, run: int, fields: list[dict[str, tuple[int, Any]]]) -> None:
        """Note the rows that changed alone, as each lies in a page of its own."""
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
            # By type, too: 1 and 1.0 are equal to Python.
            if old.get(key) != (kind, value) or type(old[key][1]) is not type(value):
                self._rows[key] += (key, run, kind, value)

    def _new_key(self, origin: int, name: str) -> int:
        query = "INSERT INTO key(origin, name) VALUES (?, ?)"
        number = _inserted(self.connection.execute(query, (origin, name)))
        self._keys[origin][name] = number
        return number

    def _remove(self, name: str, run: int) -> None:
        # By (key, run): an index by run would double the file for the sake of the rare change.
        self.connection.execute("DELETE FROM field WHERE key IN (SELECT id FROM key) AND run = ?", (run,))
        self.connection.execute("DELETE FROM run WHERE id = ?", (run,))
        self.gone.append(name)


def _bits(origins: Collection[int]) -> int:
    return sum(1 << origin for origin in origins)


def _inserted(cursor: sqlite3.Cursor) -> int:
    """Return the number of the row that was inserted."""
    if cursor.lastrowid is None:
        raise sqlite3.DatabaseError("a row that was inserted has no number")
    return cursor.lastrowid


def _number(name: str) -> int | None:
    """Return the number that a name is, if it is one that SQLite holds."""
    number = id_of(name)
    return number if isinstance(number, int) and not is_large(number) else None


def _storable(name: str) -> str | bytes:
    """Return a file's name as SQLite holds it: as bytes where it is no valid text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name
