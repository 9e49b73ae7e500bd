"""Putting runs into an index, many in one transaction."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from observers.record.storable import is_large
from runs.query.index import scanning
from runs.query.index.fields import OF_RUN, fields_of, read_documents
from runs.query.names import id_of

__all__ = ["Batch"]

# How long one batch holds the lock.
_BATCH_S = 0.5


class Batch:
    """Runs that are put into the index in one transaction."""

    def __init__(self, connection: sqlite3.Connection, store: Path) -> None:
        self.connection = connection
        self.store = store
        self.taken: dict[str, str] = {}
        self.gone: list[str] = []
        self.num_read = 0
        self._keys = {
            (origin, name): number for number, origin, name in connection.execute("SELECT id, origin, name FROM key")
        }
        self._rows: dict[int, list[tuple[int, int, int, Any]]] = defaultdict(list)

    def take(self, names: list[str]) -> list[str]:
        """Look at runs for a while; return the names that are left."""
        until = time.monotonic() + _BATCH_S
        done = 0
        while done < len(names) and (done == 0 or time.monotonic() < until):
            self._take(names[done])
            done += 1
        for key in sorted(self._rows):
            self.connection.executemany("INSERT OR REPLACE INTO field VALUES (?, ?, ?, ?)", self._rows[key])
        return names[done:]

    def _take(self, name: str) -> None:
        query = "SELECT id, stamp, digest FROM run WHERE name = ?"
        entry: tuple[int, str, bytes] | None = self.connection.execute(query, (_storable(name),)).fetchone()
        # The stamp is older than what is read, so that a change in between is seen the next time.
        stamp = scanning.look(self.store, name)
        if stamp is None:
            if entry is not None:
                self._remove(name, entry[0])
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
                self.taken[name] = stamp
            return
        fields, problems = fields_of(documents)
        reasons = "; ".join(problems).encode("utf-8", "replace").decode() or None
        row = (_storable(name), _number(name), stamp, digest, bool(fields[OF_RUN]), reasons)
        if entry is None:
            query = "INSERT INTO run(name, number, stamp, digest, is_readable, problems) VALUES (?, ?, ?, ?, ?, ?)"
            number = _inserted(self.connection.execute(query, row))
        else:
            number = entry[0]
            query = "UPDATE run SET stamp = ?, digest = ?, is_readable = ?, problems = ? WHERE id = ?"
            self.connection.execute(query, (*row[2:], number))
        self._put(number, fields, is_new=entry is None)
        self.taken[name] = stamp
        self.num_read += 1

    def _put(self, run: int, fields: list[dict[str, tuple[int, Any]]], *, is_new: bool) -> None:
        """Note the rows to write: of a run that is known only what changed, as each row lies in a page of its own."""
        new = {
            self._keys.get((origin, name)) or self._new_key(origin, name): encoded
            for origin, flat in enumerate(fields)
            for name, encoded in flat.items()
        }
        if not is_new:
            query = "SELECT key, kind, value FROM field WHERE key IN (SELECT id FROM key) AND run = ?"
            old = {key: (kind, value) for key, kind, value in self.connection.execute(query, (run,))}
            gone = [(key, run) for key in old.keys() - new.keys()]
            self.connection.executemany("DELETE FROM field WHERE key = ? AND run = ?", gone)
            # By type, too: 1 and 1.0 are equal to Python.
            same = {
                key
                for key in old.keys() & new.keys()
                if old[key] == new[key] and type(old[key][1]) is type(new[key][1])
            }
            new = {key: encoded for key, encoded in new.items() if key not in same}
        for key, (kind, value) in new.items():
            self._rows[key].append((key, run, kind, value))

    def _new_key(self, origin: int, name: str) -> int:
        query = "INSERT INTO key(origin, name) VALUES (?, ?)"
        number = _inserted(self.connection.execute(query, (origin, name)))
        self._keys[origin, name] = number
        return number

    def _remove(self, name: str, run: int) -> None:
        # By (key, run): an index by run would double the file for the sake of the rare change.
        self.connection.execute("DELETE FROM field WHERE key IN (SELECT id FROM key) AND run = ?", (run,))
        self.connection.execute("DELETE FROM run WHERE id = ?", (run,))
        self.gone.append(name)


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
