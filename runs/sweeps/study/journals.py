"""The journal of an Optuna study: a file that a killed writer neither tears nor locks.

Optuna's own file backend holds a lock file, which a killed process leaves behind for 30 seconds, and reads no further
than a line that a full disk has cut.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Generator
from io import RawIOBase
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from sacristan.observers.record.files import sync_file
from sacristan.observers.record.locking import claimed
from sacristan.runs.errors import SweepError

__all__ = ["file_storage"]

# Optuna's number of the operation that ends a trial; nothing of it may be lost, even to a power cut.
_SET_STATE = 6


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


def file_storage(path: Path) -> JournalStorage:
    """Return a study's storage in a file."""
    return JournalStorage(_FileJournal(path))
