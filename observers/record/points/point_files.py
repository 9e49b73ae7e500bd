"""The points of a run on disk: appended to `metrics.bin`, with their names, checksums and summaries."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sacristan.configs.packages import numpy as np
from sacristan.observers.record.append_file import AppendFile
from sacristan.observers.record.json_text import as_text
from sacristan.observers.record.points import POINT, POINT_BYTES, TICKS_PER_S, GrowingSummaries, Metric
from sacristan.observers.record.points.intact_points import (
    ENTRY_BYTES,
    blocks_in,
    entries_of,
    read_intact_points,
    read_live,
    read_points,
    read_summaries,
)
from sacristan.observers.record.points.live_points import HALF_POINTS
from sacristan.observers.record.points.point_log import ChildPoints, PointLog
from sacristan.observers.record.points.rewinding import read_position
from sacristan.observers.record.schema import LIVE, NAMES, POINTS, SUMS, VALUES, read_names

_log = logging.getLogger(__name__)


class PointFiles(PointLog):
    """Writes the points of one run; `num_changes` counts how often the points, or their summaries, changed.

    `say` is called with a path and an error for data that cannot be written yet, and is retried.
    """

    def __init__(self, folder: Path, say: Callable[[Path, OSError], None]) -> None:
        super().__init__(folder)
        self.folder: Path = folder
        self._say = say
        self._points = AppendFile(folder / POINTS, POINT_BYTES, self._note_written, say)
        self._sums = AppendFile(folder / SUMS, ENTRY_BYTES, say=say)
        # Whether checksums of lost points were removed, and the checksums of new points that are not written yet.
        self._is_open = False
        self._new_sums = bytearray()
        self._names = AppendFile(folder / NAMES, say=say)
        self._values = AppendFile(folder / VALUES, say=say)
        self._summaries = GrowingSummaries(lambda start, stop: read_points(self.folder, start, stop))
        self.num_changes = 0
        self._read_names()

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """The summary of each metric, over the points in the file."""
        with self.turn:
            return self._summaries.extend(self._points.num_written, self.names)

    @property
    def files(self) -> tuple[AppendFile, ...]:
        """The files, in the order in which they are written."""
        return self._names, self._points, self._values, self._sums

    @property
    def num_lost_bytes(self) -> int:
        """Bytes that were lost because they could not be written, or not be fetched from a device."""
        return sum(file.num_lost_bytes for file in self.files) + self._num_lost_points * POINT_BYTES

    @property
    def num_lost_points(self) -> int:
        """Points that were lost in the same way."""
        return self._points.num_lost_bytes // POINT_BYTES + self._num_lost_points

    def begin(self, start: float, half_points: int = HALF_POINTS, path: Path | None = None, base: int = 0) -> None:
        # In memory that outlives the process, if possible.
        with self.turn:
            with contextlib.suppress(OSError):
                self._open_points()
            super().begin(start, half_points, path or self.folder / LIVE, self._num_points())
        self._warn_of_memory()

    def _warn_of_memory(self) -> None:
        if self.live.trouble is not None:
            _log.warning(
                "%s: the latest points are kept in memory alone (%s); if this process is killed, those since the last "
                "heartbeat are lost",
                self.folder,
                self.live.trouble,
            )

    def _write_name(self, number: int, name: str, float_steps: bool) -> None:
        row = {"id": number, "name": name, **({"steps": "float"} if float_steps else {})}
        self._names.write(json.dumps(row).encode() + b"\n")

    def _num_points(self) -> int:
        return self._points.num_records

    def _keep(self, base: int, points: bytes) -> None:
        self._append_points(points[max(0, self._num_points() - base) * POINT_BYTES :])
        self._note(base, points)

    def add_batch(self, name: Any, steps: list, values: list, ticks: np.ndarray) -> None:
        """Append points of one metric, for observers of a stock Sacred run, which do not call `begin`.

        Values that are not numbers go to `values.jsonl`. `ticks` (n,) count from the start of the run.
        """
        name = as_text(name)
        try:
            points, float_steps = _as_points(steps, values, ticks)
        except (TypeError, ValueError, OverflowError):
            self._add_one_by_one(name, steps, values, ticks)
            return
        if not len(points):
            return
        metric = self.metric(name, float_steps=float_steps)
        points["metric"] = (metric.float_tag if float_steps else metric.tag) - 1
        with self.turn:
            start = self._num_points()
            self._append_points(points.tobytes())
            self._note(start, points.tobytes())

    def _add_one_by_one(self, name: str, steps: list, values: list, ticks: np.ndarray) -> None:
        """Append points of which some are not numbers of 64 bits."""
        for step, value, tick in zip(steps, values, ticks, strict=True):
            try:
                _as_points([step], [value], np.array([tick]))
            except (TypeError, ValueError, OverflowError):
                after = self.summary.get(name, {}).get("count", 0)
                row = {"name": name, "step": step, "time": int(tick), "value": as_text(value), "after": after}
                self._values.write(json.dumps(row, default=as_text).encode() + b"\n")
            else:
                self.add_batch(name, [step], [value], np.array([tick]))

    # ------------------------------------------------------------------ writing

    def retry(self) -> None:
        """Write data that could not be written before; it still waits if that fails again."""
        try:
            self._write_pending()
        except OSError as error:
            self._say(self._points.path, error)

    def flush(self) -> None:
        """Write everything logged so far; after an OSError, it is retried."""
        self.drain()
        self._write_pending()

    def sync(self) -> None:
        """Write everything logged so far, and wait until it is on the disk."""
        self.flush()
        for file in self.files:
            file.sync()

    def _write_pending(self) -> None:
        with self.turn:
            with self._naming:
                self._names.append(b"")
            if self._points.num_pending_bytes:
                self._open_points()
            self._points.append(b"")
            self._write_sums()
            self._values.append(b"")

    def _append_points(self, data: bytes) -> None:
        """Append points, after their names."""
        try:
            with self._naming:
                self._names.append(b"")
        except OSError as error:
            self._points.hold(data)
            self._say(self._names.path, error)
            return
        with contextlib.suppress(OSError):  # reported below
            self._open_points()
        self._points.write(data)
        try:
            self._write_sums()
        except OSError as error:
            self._say(self._sums.path, error)

    def _note(self, start: int, points: bytes) -> None:
        """Note packed points that were appended at `start`, for the summaries."""
        # Pending points may be dropped; those that are not are read from the file later.
        if not self._points.num_pending_bytes and self._summaries.note(start, points):
            self._summaries.extend(self._points.num_written, self.names)

    def _sum_up_again(self) -> None:
        self.num_changes += 1
        self._summaries.restart(read_summaries(self.folder), self._points.num_written)

    def _note_written(self, at: int, data: memoryview) -> None:
        self.num_changes += 1
        self._new_sums += entries_of(data, at // POINT_BYTES)

    def _write_sums(self) -> None:
        """Append the checksums of written points; afterwards, so that none describes points that do not exist."""
        entries, self._new_sums = self._new_sums, bytearray()
        self._sums.append(bytes(entries))

    # ------------------------------------------------------------------ a folder that is moved or deleted

    def follow(self, folder: Path) -> None:
        """Continue in the same files after their folder was moved; they stay open, so no point is lost."""
        with self.turn, self._naming:
            self.folder = folder
            for file in self.files:
                file.path = folder / file.path.name
            if self._live is not None:
                self._live.follow(folder / LIVE)

    def recreate(self, folder: Path) -> None:
        """Create the files again, with their content, after the folder or one of them was deleted.

        The content comes from the files that are still open. Points that cannot be read from there count as lost, and
        are taken out of the summaries.
        """
        with self.turn, self._naming:
            self.drain()
            self.folder, lost = folder, self._points.num_lost_bytes
            self._new_sums.clear()
            if self._points.recreate(folder / POINTS):
                self._sums.close()
                self._sums = AppendFile(folder / SUMS, ENTRY_BYTES, say=self._say)
                (folder / SUMS).unlink(missing_ok=True)
            for file in self.files:
                file.recreate(folder / file.path.name)
            self._sums.write(bytes(self._new_sums))
            self._new_sums.clear()
            if self._points.num_lost_bytes > lost:
                self._sum_up_again()
            if self._live is not None and not self._live.is_closed:
                rest = self._live.recreate(folder / LIVE, self._num_points())
                self._warn_of_memory()
                if rest is not None:
                    self._move(rest)

    # ------------------------------------------------------------------ the end

    def give_up(self) -> None:
        """Reject new points, write the rest, and count as lost what cannot be written."""
        if self._live is not None:
            self._live.close()
            self.drain()
        self.retry()
        if self._live is not None:
            # Every point is written or pending. On a full disk the file's room helps, half of it for other files.
            is_enough = sum(file.num_pending_bytes for file in self.files) <= self._live.num_bytes // 2
            self._live.remove()
            if is_enough:
                self.retry()
        with self.turn:
            for file in self.files:
                file.give_up()

    # ------------------------------------------------------------------ an earlier process's record

    def recover(self) -> None:
        """Append the points that a killed process left in `metrics.live`, and remove that file.

        No other process may write the run. If this is interrupted, it can be repeated.
        """
        live = read_live(self.folder)
        if not (self.folder / LIVE).exists():
            return
        self._open_points()
        for base, points in live:
            self._points.append(points[max(0, self._num_points() - base) :].tobytes())
        self._write_sums()
        self._points.sync()
        self._sums.sync()
        (self.folder / LIVE).unlink()

    def recover_children(self) -> None:
        """Append the points that forked children of a killed process left; call it after `recall`."""
        with ChildPoints(self.folder).left() as points:
            series: dict[str, tuple[list, list, list]] = {}
            for name, step, value, seconds in points:
                steps, values, ticks = series.setdefault(name, ([], [], []))
                before = steps[-1] if steps else self.metrics[name].last if name in self.metrics else -1
                steps.append(before + 1 if step is None else step)
                values.append(value)
                ticks.append(max(0, int(seconds * TICKS_PER_S)))
            for name, (steps, values, ticks) in series.items():
                self.add_batch(name, steps, values, np.array(ticks))
            self.sync()
        if points:
            self.recall()

    def recall(self) -> None:
        """Load ids, summaries and counts from the folder."""
        with self.turn, self._naming:
            self._open_points()
            self._read_names()
            # A power cut may have lost the name of an id; its points must not get another name.
            self._next_id = max(self._next_id, int(read_intact_points(self.folder)[0]["metric"].max(initial=0)) + 1)
            self._sum_up_again()
        self.count_from(read_position(self.folder)["metrics"])

    def _open_points(self) -> None:
        """Open the file of points, and drop the checksums of points that a power cut has lost."""
        self._points.create()
        if not self._is_open and self._sums.path.exists():
            entries, count = self._sums.path.read_bytes(), self._num_points()
            kept = b"".join(
                entries[at : at + ENTRY_BYTES]
                for at in range(0, len(entries), ENTRY_BYTES)
                if any(first + length <= count for first, length, _ in blocks_in(entries[at : at + ENTRY_BYTES]))
            )
            if kept != entries:
                self._sums.replace(kept)
        self._is_open = True

    def _read_names(self) -> None:
        """Load the names from the file; a name that is missing there gets its old id again."""
        self.names = read_names(self.folder)
        numbers = {key: number for number, key in self.names.items()}
        self._numbers |= numbers
        self._next_id = max(self._next_id, max(self.names, default=-1) + 1)
        # New objects, because a thread that is about to log counts in the old ones.
        self.metrics = {name: Metric(name) for name, _ in numbers}
        for (name, float_steps), number in numbers.items():
            if float_steps:
                self.metrics[name].float_tag = number + 1
            else:
                self.metrics[name].tag = number + 1

    def num_damaged(self) -> int:
        """Read all points in the file, and return how many are damaged."""
        points, count = read_intact_points(self.folder)
        return count - len(points)

    def replace(self, name: str, data: bytes) -> None:
        """Replace the content of one file; call `recall` afterwards."""
        file = next(file for file in self.files if file.path.name == name)
        if file is not self._points:
            file.replace(data)
            return
        # Points without a checksum are accepted; points with the checksum of others are not.
        self._sums.replace(b"")
        file.replace(data)
        self._sums.replace(entries_of(data, 0))


def _as_points(steps: list, values: list, ticks: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return points (n,) without their metric, and whether their steps are floats."""
    array = np.zeros(len(values), POINT)
    as_float = not all(type(step) is int or float(step).is_integer() for step in steps)
    array["value"] = np.array(values, np.float64)
    array["time"] = ticks
    array["step"] = np.array(steps, np.float64).view("<i8") if as_float else np.array(steps, np.int64)
    return array, as_float
