"""Journals of Optuna studies: a file that a killed writer neither tears nor locks, and a collection of MongoDB.

Optuna's own file backend holds a lock file, which a killed process leaves behind for 30 seconds, and reads no further
than a line that a full disk has cut. It has no backend for MongoDB.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Generator, Iterator
from io import RawIOBase
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from pymongo import ReturnDocument
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from observers.record.atomic_file import sync_file
from observers.record.locking import claimed
from runs.errors import SweepError
from runs.sweeps.study.outages import Outages, lasting

__all__ = ["MongoJournal", "file_storage"]

# Optuna's number of the operation that ends a trial; nothing of it may be lost, even to a power cut.
_SET_STATE = 6
_DIGITS = 9
# How long a number may be without its entry, and an entry that Optuna passes over.
_PATIENCE_S = 2.0
# Entries that are read at once.
_BATCH = 5000
# How long what was read counts as the newest: Optuna asks a dozen times for each trial.
_FRESH_S = 0.05
_EMPTY = '{"op_code":10,"worker_id":""}'


class _FileJournal(JournalFileBackend):
    """Optuna's file of JSON lines, which its tools read; a torn last line is cut off before the next one is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        try:
            yield from super().read_logs(log_number_from)
        except ValueError as error:
            raise SweepError(
                f"{self._path}: a line cannot be read ({error}); restore the file, or start another sweep"
            ) from error

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
                sync_file(stream.fileno())


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

    A counter hands out the numbers, which are a part of `_id`, so that writers do not get into each other's way; the
    order is that of the numbers, for every reader. A writer that was killed between the two leaves a number without an
    entry: whoever waits for it too long puts an empty one there, and a writer that was only slow takes another number.

    Args:
        collection: Where the entries are.
        name: Of the journal; a collection may hold many.
        outages: Asks the database.
    """

    def __init__(self, collection: Collection[dict[str, Any]], name: str, outages: Outages) -> None:
        self._entries = lasting(collection)
        self._name = name
        self._outages = outages
        # Behind the last entry of ours: up to there everything is read.
        self._end = 0
        # That entry, which need not be asked for, if nobody has written one meanwhile.
        self._last: tuple[int, str] | None = None
        self._read_at = -math.inf

    def expire(self) -> None:
        """Ask the database at the next reading, however new what was read last is."""
        self._read_at = -math.inf

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        number, waiting_since = log_number_from, None
        if self._last is not None and self._last[0] == number:
            yield json.loads(self._last[1])
            number += 1
        if number >= self._end and time.monotonic() - self._read_at < _FRESH_S:
            return
        while True:
            asked_at = time.monotonic()
            found = self._read(number)
            for entry in found:
                if entry["_id"] != self._id(number):
                    break  # a gap
                number, waiting_since = number + 1, None
                yield json.loads(entry["entry"])
            else:
                if len(found) == _BATCH:
                    continue
            if number >= self._end:
                self._read_at = asked_at
                return
            now = time.monotonic()
            waiting_since = waiting_since or now
            if now - waiting_since > _PATIENCE_S:
                self._insert(number, _EMPTY)
            time.sleep(0.001)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        for log in logs:
            # As text: a document would change integers, tuples and keys with dots.
            text = json.dumps(log, separators=(",", ":"))
            while not self._insert(number := self._next(), text):
                pass
            self._end = number + 1
            self._last = (number, text)

    def _read(self, number: int) -> list[dict[str, Any]]:
        """Return entries from a number on, at most a batch."""
        wanted = {"_id": {"$gte": self._id(number), "$lt": self._id(None)}}
        return self._outages.ask(lambda: list(self._entries.find(wanted).sort("_id", 1).limit(_BATCH)))

    def _next(self) -> int:
        counted = self._outages.ask(
            lambda: self._entries.find_one_and_update(
                {"_id": self._name}, {"$inc": {"next": 1}}, upsert=True, return_document=ReturnDocument.AFTER
            )
        )
        return int((counted or {})["next"]) - 1

    def _insert(self, number: int, text: str) -> bool:
        entry = {"_id": self._id(number), "entry": text}

        def insert() -> bool:
            try:
                self._entries.insert_one(entry)
            except DuplicateKeyError:
                # An insert that was sent twice, because its answer was lost, is there all the same.
                return self._entries.find_one({"_id": entry["_id"]}) == entry
            return True

        return self._outages.ask(insert)

    def _id(self, number: int | None) -> str:
        return f"{self._name}0" if number is None else f"{self._name}/{number:0{_DIGITS}d}"  # 0 follows the slash


def file_storage(path: Path) -> JournalStorage:
    """Return a study's storage in a file."""
    return JournalStorage(_FileJournal(path))
