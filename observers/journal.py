"""The journal of a run: append-only files and whole files in its folder, written by one process.

A write that fails (full disk, lost mount, read-only folder) never raises. What could not be written is kept in memory
and tried again with the next write, up to a bound; beyond it the oldest is given up, and counted. The first failure is
said once.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from configs.atomic_file import replacing
from observers.schema import NAMES, OUTPUT, POINT, POINTS, SUMMARY, VALUES, read_names, summarize, to_steps

__all__ = ["AppendFile", "Journal"]

_log = logging.getLogger(__name__)
_MAX_PENDING_BYTES = 64 * 2**20


class AppendFile:
    """An append-only file of whole records, which repairs a torn tail when it is opened.

    Args:
        path: The file; made when the first record is written.
        record_bytes: Length of a record; None for lines; 0 for a stream without records.
    """

    def __init__(self, path: Path, record_bytes: int | None = None) -> None:
        self.path = path
        self.record_bytes = record_bytes
        self.num_lost_bytes = 0
        self._pending = bytearray()
        self._fd: int | None = None
        self._size = 0

    def create(self) -> None:
        """Make the file, if it is not there."""
        if self._fd is None:
            self._open()

    def append(self, data: bytes) -> bool:
        """Write `data` behind what is there, and what failed before ahead of it; return whether all is written."""
        self._pending += data
        if not self._pending:
            return True
        try:
            self.create()
            view = memoryview(self._pending)
            try:
                written = 0
                while written < len(view):
                    written += os.pwrite(self._fd, view[written:], self._size + written)
            finally:
                view.release()
        except OSError:
            self._cut_tail()
            self._give_up_oldest()
            raise
        self._size += len(self._pending)
        self._pending.clear()
        return True

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        self._size = self._whole(size)
        if self._size != size:
            os.ftruncate(self._fd, self._size)

    def _whole(self, size: int) -> int:
        """Return the size of the file without its torn tail."""
        if self.record_bytes == 0:
            return size
        if self.record_bytes is not None:
            return size - size % self.record_bytes
        end = size
        while end > 0:
            start = max(0, end - 65536)
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
        return 0

    def _cut_tail(self) -> None:
        """Take back what a failed write left, so that readers meet whole records only."""
        if self._fd is not None:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError:
                _log.debug("%s: the tail of a failed write stays until the next one", self.path)

    def _give_up_oldest(self) -> None:
        excess = len(self._pending) - _MAX_PENDING_BYTES
        if excess <= 0:
            return
        if self.record_bytes:
            excess += -excess % self.record_bytes
        elif self.record_bytes is None:
            excess = self._pending.find(b"\n", excess) + 1 or len(self._pending)
        del self._pending[:excess]
        self.num_lost_bytes += excess

    def close(self) -> None:
        """Flush the file to disk and close it."""
        if self._fd is not None:
            try:
                os.fsync(self._fd)
            except OSError:
                _log.debug("%s: could not be flushed to disk", self.path)
            os.close(self._fd)
            self._fd = None


class Journal:
    """Writes one run down.

    Args:
        folder: The run's folder, which exists.

    Attributes:
        num_failures: Writes that failed so far, most of them made good later.
        summary: The summary of each metric, see `schema.summarize`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.num_failures = 0
        self.summary: dict[str, dict[str, Any]] = {}
        self._points = AppendFile(self.folder / POINTS, POINT.itemsize)
        self._names = AppendFile(self.folder / NAMES)
        self._values = AppendFile(self.folder / VALUES)
        self._output = AppendFile(self.folder / OUTPUT, 0)
        self._ids = {name: number for number, name in read_names(self.folder).items()}
        self._documents: dict[str, bytes] = {}
        try:
            self._output.create()
        except OSError as error:
            self._say(self._output.path, error)

    @property
    def num_lost_bytes(self) -> int:
        """Bytes that were given up, because the disk refused them for too long."""
        return sum(file.num_lost_bytes for file in (self._points, self._names, self._values, self._output))

    def add_points(self, name: str, steps: list, values: list, ticks: np.ndarray) -> None:
        """Append points of one metric.

        Args:
            name: The metric.
            steps: (n,) ints, or floats.
            values: (n,) numbers; what is none goes to `values.jsonl`.
            ticks: (n,) times in ticks since the run started.
        """
        try:
            array, as_float = _as_points(steps, values, ticks)
        except (TypeError, ValueError, OverflowError):
            self._add_odd_points(name, steps, values, ticks)
            return
        if not len(array):
            return
        array["metric"] = self._id(name, as_float)
        self._append(self._points, array.tobytes())
        self.summary[name] = summarize(
            array["value"].copy(), to_steps(array["step"].copy(), as_float), self.summary.get(name)
        )

    def _add_odd_points(self, name: str, steps: list, values: list, ticks: np.ndarray) -> None:
        """Append one by one what is not all numbers of 64 bits."""
        for step, value, tick in zip(steps, values, ticks, strict=True):
            try:
                _as_points([step], [value], np.array([tick]))
            except (TypeError, ValueError, OverflowError):
                row = {"name": name, "step": step, "time": int(tick), "value": _as_text(value)}
                self._append(self._values, json.dumps(row, default=str).encode() + b"\n")
            else:
                self.add_points(name, [step], [value], np.array([tick]))

    def _id(self, name: str, as_float: bool) -> int:
        key = (name, as_float)
        if key not in self._ids:
            self._ids[key] = len(self._ids)
            row = {"id": self._ids[key], "name": name, **({"steps": "float"} if as_float else {})}
            self._append(self._names, json.dumps(row).encode() + b"\n")
        return self._ids[key]

    def add_output(self, data: bytes) -> None:
        """Append captured output."""
        self._append(self._output, data)

    def flush(self) -> None:
        """Try again to write what failed before."""
        for file in (self._names, self._points, self._values, self._output):
            self._append(file, b"")
        for name in list(self._documents):
            self._replace(name)

    def write(self, name: str, document: Any, *, durable: bool = True) -> None:
        """Replace the JSON file `name` by `document`.

        Args:
            name: Its name in the folder.
            document: What JSON can hold.
            durable: Whether to wait until it is on the disk; a killed process never needs that, a power cut does.
        """
        self._documents[name] = json.dumps(document, indent=2).encode()
        self._replace(name, durable=durable)

    def write_summary(self) -> None:
        """Replace the summary of the metrics."""
        self.write(SUMMARY, self.summary, durable=False)

    def _append(self, file: AppendFile, data: bytes) -> None:
        try:
            file.append(data)
        except OSError as error:
            self._say(file.path, error)

    def _replace(self, name: str, *, durable: bool = True) -> None:
        try:
            with replacing(self.folder / name, durable=durable) as stream:
                stream.write(self._documents[name])
            del self._documents[name]
        except OSError as error:
            self._say(self.folder / name, error)

    def _say(self, path: Path, error: OSError) -> None:
        self.num_failures += 1
        if self.num_failures == 1:
            _log.warning(
                "%s cannot be written (%s); training goes on, and writing is tried again", path, error.strerror
            )

    def close(self) -> None:
        """Write what is left, and close all files."""
        self.flush()
        for file in (self._names, self._points, self._values, self._output):
            file.close()
        if self.num_lost_bytes:
            _log.error("%s: %d bytes of the record could not be written and are lost", self.folder, self.num_lost_bytes)


def _as_points(steps: list, values: list, ticks: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return points (n,) without their metric, and whether their steps are floats."""
    array = np.zeros(len(values), POINT)
    as_float = not all(type(step) is int for step in steps)
    if as_float and all(float(step).is_integer() for step in steps):
        as_float = False
    array["value"] = np.array(values, np.float64)
    array["time"] = ticks
    array["step"] = np.array(steps, np.float64).view("<i8") if as_float else np.array(steps, np.int64)
    return array, as_float


def _as_text(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # an int of more digits than Python writes
        return hex(value)
