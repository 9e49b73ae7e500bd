"""Journals of Optuna studies: a file that a killed writer neither tears nor locks, and a collection of MongoDB.

Optuna's own file backend holds a lock file, which a killed process leaves behind for 30 seconds, and reads no further
than a line that a full disk has cut. It has no backend for MongoDB.
"""

from __future__ import annotations

import errno
import json
import os
import random
import time
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from observers.record.locking import claimed

__all__ = ["MongoJournal", "file_storage", "mongo_storage"]

# Optuna's number of the operation that ends a trial; nothing of it may be lost, even to a power cut.
_SET_STATE = 6
_DIGITS = 9


class _FileJournal(JournalFileBackend):
    """Optuna's file of JSON lines, which its tools read; a torn last line is cut off before the next one is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with claimed(self._path.parent), self._path.open("r+b", buffering=0) as stream:
            end = _end_of_last_line(stream)
            stream.truncate(end)
            stream.seek(end)
            if stream.write(lines) < len(lines):
                stream.truncate(end)
                raise OSError(errno.ENOSPC, f"{self._path}: {os.strerror(errno.ENOSPC)}")
            if any(log.get("op_code") == _SET_STATE for log in logs):
                os.fsync(stream.fileno())


def _end_of_last_line(stream: RawIOBase) -> int:
    """Return where the last line ends that is whole."""
    end = stream.seek(0, os.SEEK_END)
    while end:
        start = max(end - 4096, 0)
        stream.seek(start)
        found = stream.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


class MongoJournal(BaseJournalBackend):
    """A journal in a collection: one document per entry, numbered without gaps.

    The number is a part of `_id`, and each writer takes the one behind the last that it can see: of those who are at
    it at once the database lets one through, and the others take the next. So the order is that of the numbers, for
    every reader, and whatever writer is killed.

    Args:
        collection: Where the entries are.
        name: Of the journal; a collection may hold many.
    """

    def __init__(self, collection: Collection[dict[str, Any]], name: str) -> None:
        self._entries = collection
        self._name = name
        self._next = 0

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        wanted = {"_id": {"$gte": self._id(log_number_from), "$lt": f"{self._name}0"}}  # 0 follows the slash
        for entry in self._entries.find(wanted).sort("_id", 1):
            self._next = int(entry["_id"][-_DIGITS:]) + 1
            yield json.loads(entry["entry"])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        for log in logs:
            # As text: a document would change integers, tuples and keys with dots.
            text = json.dumps(log, separators=(",", ":"))
            failures = 0
            while not self._insert(text):
                failures += 1
                if failures > 3:  # many are at it: let some of them through
                    time.sleep(random.uniform(0, min(0.001 * 2**failures, 0.1)))
                self._next = self._end()

    def _insert(self, text: str) -> bool:
        try:
            self._entries.insert_one({"_id": self._id(self._next), "entry": text})
        except DuplicateKeyError:
            return False
        self._next += 1
        return True

    def _end(self) -> int:
        """Return the number behind the last entry."""
        ours = {"_id": {"$gte": self._id(0), "$lt": f"{self._name}0"}}
        last = self._entries.find_one(ours, {"_id": 1}, sort=[("_id", -1)])
        return 0 if last is None else int(last["_id"][-_DIGITS:]) + 1

    def _id(self, number: int) -> str:
        return f"{self._name}/{number:0{_DIGITS}d}"


def file_storage(path: Path) -> JournalStorage:
    """Return a study's storage in a file."""
    return JournalStorage(_FileJournal(path))


def mongo_storage(collection: Collection[dict[str, Any]], name: str) -> JournalStorage:
    """Return a study's storage in a collection."""
    return JournalStorage(MongoJournal(collection, name))
