"""The journal of a run: append-only files and whole files in its folder, written by one process.

A write that fails (full disk, lost mount, read-only folder) never raises. What could not be written is kept in memory
and tried again with the next write, up to a bound; beyond it the oldest is given up, and counted. The first failure is
said once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from observers.record.append_file import AppendFile
from observers.record.atomic_file import replacing
from observers.record.media_files import MediaFiles
from observers.record.rewinding import Position, read_position, rewound_files, summaries
from observers.record.schema import (
    MEDIA,
    NAMES,
    NOTES,
    OUTPUT,
    POINT,
    POINTS,
    SUMMARY,
    VALUES,
    read_names,
    read_points,
    summarize,
    to_steps,
)

__all__ = ["Journal"]

_log = logging.getLogger(__name__)


class Journal:
    """Writes one run down.

    Args:
        folder: The run's folder, which exists.

    Attributes:
        num_failures: Writes that failed so far, most of them made good later.
        summary: The summary of each metric, see `schema.summarize`.
        media: The files of media.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.num_failures = 0
        self.summary: dict[str, dict[str, Any]] = {}
        self._points = AppendFile(self.folder / POINTS, POINT.itemsize)
        self._names = AppendFile(self.folder / NAMES)
        self._values = AppendFile(self.folder / VALUES)
        self._output = AppendFile(self.folder / OUTPUT, 0)
        self.media = MediaFiles(self.folder, self._say)
        self._ids: dict[tuple[str, bool], int] = {}
        self._next_id = 0
        self._read_ids()
        self._documents: dict[str, bytes] = {}
        try:
            self._output.create()
        except OSError as error:
            self._say(self._output.path, error)

    @property
    def num_lost_bytes(self) -> int:
        """Bytes that were given up, because the disk refused them for too long."""
        files = (self._points, self._names, self._values, self._output, self.media)
        return sum(file.num_lost_bytes for file in files)

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
                after = self.summary.get(name, {}).get("count", 0)
                row = {"name": name, "step": step, "time": int(tick), "value": _as_text(value), "after": after}
                self._append(self._values, json.dumps(row, default=str).encode() + b"\n")
            else:
                self.add_points(name, [step], [value], np.array([tick]))

    def _id(self, name: str, as_float: bool) -> int:
        key = (name, as_float)
        if key not in self._ids:
            self._ids[key] = self._next_id
            self._next_id += 1
            row = {"id": self._ids[key], "name": name, **({"steps": "float"} if as_float else {})}
            self._append(self._names, json.dumps(row).encode() + b"\n")
        return self._ids[key]

    def add_output(self, data: bytes) -> None:
        """Append captured output."""
        self._append(self._output, data)

    def end_line(self) -> None:
        """Append a line feed to output that ends in the middle of a line."""
        with self._output.path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - 1))
            last = stream.read()
        self._append(self._output, b"\n" if last not in (b"", b"\n") else b"")

    def flush(self) -> None:
        """Try again to write what failed before."""
        for file in (self._names, self._points, self._values, self._output):
            self._append(file, b"")
        self.media.flush()
        for name in list(self._documents):
            self._replace(name)

    def write(self, name: str, document: Any, *, durable: bool = True) -> bool:
        """Replace the JSON file `name` by `document`, and return whether that is done.

        Args:
            name: Its name in the folder.
            document: What JSON can hold.
            durable: Whether to wait until it is on the disk; a killed process never needs that, a power cut does.
        """
        self._documents[name] = json.dumps(document, indent=2).encode()
        self._replace(name, durable=durable)
        return name not in self._documents

    def write_summary(self) -> None:
        """Replace the summary of the metrics."""
        self.write(SUMMARY, self.summary, durable=False)

    def sync(self) -> None:
        """Wait until all points and media are on the disk; what cannot be written is tried again later."""
        try:
            self._flush_or_raise()
            for file in (self._names, self._points, self._values):
                file.sync()
            self.media.sync()
        except OSError as error:
            self._say(self.folder, error)

    def _flush_or_raise(self) -> None:
        for file in (self._names, self._points, self._values):
            file.append(b"")
        self.media.flush_or_raise()

    # ------------------------------------------------------------------ a journal that was begun before

    def recall(self) -> None:
        """Take over what an earlier process has written: the metrics' ids and summaries."""
        self._read_ids()
        # A power cut may have taken the name of an id; its points are not to come under another one.
        self._next_id = max(self._next_id, int(read_points(self.folder)["metric"].max(initial=0)) + 1)
        self.summary = summaries(self.folder)

    def clear(self) -> None:
        """Remove what a process that was killed had written half of a file; nobody else may write here meanwhile."""
        # Tags and notes are written by others, who may be about to.
        for path in set(self.folder.glob(".*.tmp")) - set(self.folder.glob(f".{NOTES}.*.tmp")):
            with contextlib.suppress(OSError):
                path.unlink()

    def _read_ids(self) -> None:
        names = read_names(self.folder)
        self._ids = {name: number for number, name in names.items()}
        self._next_id = max(names, default=-1) + 1

    def position(self) -> dict[str, dict[str, list]]:
        """Return the position of all that is in the folder."""
        return read_position(self.folder)

    def rewind(self, position: Position) -> dict[str, dict[str, list]]:
        """Take the points and media beyond a position away for good, and return the position that is reached.

        That is another one where the record has less than it should, as after a power cut.

        Raises:
            OSError: If something cannot be written; then this can be done again.
        """
        self._flush_or_raise()
        files = {file.path.name: file for file in (self._values, self._points, self._names)}
        for name, data in rewound_files(self.folder, position):
            (self.media if name == MEDIA else files[name]).replace(data)
        self.recall()
        self.write_summary()
        return self.position()

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
        self.media.close()
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
