"""The points of a run on disk: appended to `metrics.bin`, their names beside it, summed up by metric."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from observers.record.append_file import AppendFile
from observers.record.points.checksums import ENTRY_BYTES, blocks_in, entries_of
from observers.record.points.child_points import ChildPoints
from observers.record.points.live_points import HALF_POINTS, Metric
from observers.record.points.point_log import PointLog
from observers.record.points.points import POINT, TICKS_PER_S, read_intact_points, read_live, read_points
from observers.record.points.rewinding import read_position
from observers.record.points.summaries import add_to_summaries, summaries
from observers.record.schema import LIVE, NAMES, POINTS, SUMS, VALUES, read_names

__all__ = ["PointFiles", "as_text"]

_log = logging.getLogger(__name__)
_SUMMARY_POINTS = 2**18
_NONE = np.empty(0, POINT)


class PointFiles(PointLog):
    """Writes the points of one run.

    Args:
        folder: The run's folder, which exists.
        say: Called with a path and an error for what cannot be written, and is tried again.

    Attributes:
        num_changes: How often there was something to sum up, or to sum up anew.
    """

    def __init__(self, folder: Path, say: Callable[[Path, OSError], None]) -> None:
        super().__init__(folder)
        self.folder: Path = folder
        self._say = say
        self._points = AppendFile(folder / POINTS, POINT.itemsize, self._note_written)
        self._sums = AppendFile(folder / SUMS, ENTRY_BYTES)
        # Whether checksums of points that are gone were removed, and those of new points on their way to the file.
        self._is_open = False
        self._new_sums = bytearray()
        self._names = AppendFile(folder / NAMES)
        self._values = AppendFile(folder / VALUES)
        # The summaries, and how many points of the file they are of, which change together.
        self._summed_up: tuple[dict[str, dict[str, Any]], int] = ({}, 0)
        # Points that are to be summed up, as far as they are at hand, and where the first one is in the file.
        self._fresh: list[np.ndarray] = []
        self._fresh_start = self._num_fresh = 0
        self.num_changes = 0
        self._read_names()

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """The summary of each metric, of the points in the file."""
        with self.turn:
            self._sum_up()
        return self._summed_up[0]

    @property
    def files(self) -> tuple[AppendFile, ...]:
        """Its files, in the order in which they are written."""
        return self._names, self._points, self._values, self._sums

    @property
    def num_lost_bytes(self) -> int:
        """Bytes that were given up."""
        return sum(file.num_lost_bytes for file in self.files) + self._num_lost_points * POINT.itemsize

    @property
    def num_lost_points(self) -> int:
        """Points that were given up."""
        return self._points.num_lost_bytes // POINT.itemsize + self._num_lost_points

    def begin(self, start: float, half_points: int = HALF_POINTS, path: Path | None = None, base: int = 0) -> None:
        """Take points from now on, in memory that outlives the process where that is possible; see `PointLog`."""
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
        self._append(self._names, json.dumps(row).encode() + b"\n")

    def _num_points(self) -> int:
        return self._points.num_records

    def _keep(self, base: int, points: np.ndarray) -> None:
        self._append_points(points[max(0, self._num_points() - base) :].tobytes())
        self._note_fresh(base, points)

    def add_batch(self, name: str, steps: list, values: list, ticks: np.ndarray) -> None:
        """Append points of one metric; for who does not call `begin`.

        Args:
            name: The metric.
            steps: (n,) ints, or floats.
            values: (n,) numbers; what is none goes to `values.jsonl`.
            ticks: (n,) times in ticks since the run started.
        """
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
            self._note_fresh(start, points)

    def _add_one_by_one(self, name: str, steps: list, values: list, ticks: np.ndarray) -> None:
        """Append what is not all numbers of 64 bits."""
        for step, value, tick in zip(steps, values, ticks, strict=True):
            try:
                _as_points([step], [value], np.array([tick]))
            except (TypeError, ValueError, OverflowError):
                after = self.summary.get(name, {}).get("count", 0)
                row = {"name": name, "step": step, "time": int(tick), "value": as_text(value), "after": after}
                self._append(self._values, json.dumps(row, default=as_text).encode() + b"\n")
            else:
                self.add_batch(name, [step], [value], np.array([tick]))

    # ------------------------------------------------------------------ writing

    def flush(self) -> None:
        """Write what was logged, and what failed before; what cannot be written waits, and is tried again."""
        try:
            self.flush_or_raise()
        except OSError as error:
            self._say(self._points.path, error)

    def flush_or_raise(self) -> None:
        """Do as `flush` does.

        Raises:
            OSError: If something cannot be written.
        """
        self.drain()
        with self.turn:
            with self._naming:
                self._names.append(b"")
            if self._points.num_pending_bytes:
                self._open_points()
            self._points.append(b"")
            self._write_sums()
            self._values.append(b"")

    def sync(self) -> None:
        """Wait until all points are on the disk.

        Raises:
            OSError: If something cannot be written.
        """
        self.flush_or_raise()
        for file in self.files:
            file.sync()

    def _note_fresh(self, start: int, points: np.ndarray) -> None:
        """Note points (n,) that were appended at `start`, to be summed up many at once."""
        if self._points.num_pending_bytes:  # some of them may be given up; others are read from the file
            return
        if self._fresh_start + self._num_fresh != start:
            self._fresh, self._fresh_start, self._num_fresh = [], start, 0
        self._fresh.append(points)
        self._num_fresh += len(points)
        if self._num_fresh >= _SUMMARY_POINTS:
            self._sum_up()

    def _sum_up(self) -> None:
        """Bring the summary up to the points in the file."""
        summary, done = self._summed_up
        start, known = self._fresh_start, np.concatenate([_NONE, *self._fresh]) if self._fresh else _NONE
        self._fresh, self._fresh_start, self._num_fresh = [], start + len(known), 0
        while done < self._points.num_written:
            end = min(done + _SUMMARY_POINTS, self._points.num_written)
            if start <= done and end <= start + len(known):
                points = known[done - start : end - start]
            else:
                points = read_points(self.folder, done, end)
            if not len(points):  # somebody took the file away
                return
            done += len(points)
            summary = add_to_summaries(summary, points, self.names)
            self._summed_up = summary, done

    def _sum_up_anew(self) -> None:
        """Sum up all that is in the file."""
        self._fresh, self._num_fresh = [], 0
        self.num_changes += 1
        self._summed_up = summaries(self.folder), self._points.num_written

    def _append_points(self, data: bytes) -> None:
        """Append points, but none ahead of its name."""
        try:
            with self._naming:
                self._names.append(b"")
        except OSError as error:
            self._points.hold(data)
            self._say(self._names.path, error)
            return
        with contextlib.suppress(OSError):  # what is wrong is said below, by which nothing is lost
            self._open_points()
        self._append(self._points, data)
        try:
            self._write_sums()
        except OSError as error:
            self._say(self._sums.path, error)

    def _append(self, file: AppendFile, data: bytes) -> None:
        try:
            file.append(data)
        except OSError as error:
            self._say(file.path, error)

    def _note_written(self, at: int, data: memoryview) -> None:
        self.num_changes += 1
        self._new_sums += entries_of(data, at // POINT.itemsize, POINT.itemsize)

    def _write_sums(self) -> None:
        """Append the checksums of what is written: behind the points, so that none is of points that are not there."""
        entries, self._new_sums = self._new_sums, bytearray()
        self._sums.append(bytes(entries))

    # ------------------------------------------------------------------ a folder that is moved or deleted

    def follow(self, folder: Path) -> None:
        """Go on in the same files, which are in `folder` now."""
        with self.turn, self._naming:
            self.folder = folder
            for file in self.files:
                file.path = folder / file.path.name
            if self._live is not None:
                self._live.follow(folder / LIVE)

    def recreate(self, folder: Path) -> None:
        """Make the files anew in `folder`, with all that they hold."""
        with self.turn, self._naming:
            self.drain()
            self.folder, lost = folder, self._points.num_lost_bytes
            self._new_sums.clear()
            if self._points.recreate(folder / POINTS):
                self._sums.close()
                self._sums = AppendFile(folder / SUMS, ENTRY_BYTES)
                (folder / SUMS).unlink(missing_ok=True)
            for file in self.files:
                file.recreate(folder / file.path.name)
            self._append(self._sums, bytes(self._new_sums))
            self._new_sums.clear()
            if self._points.num_lost_bytes > lost:
                self._sum_up_anew()
            if self._live is not None and not self._live.is_closed:
                rest = self._live.recreate(folder / LIVE, self._num_points())
                self._warn_of_memory()
                if rest is not None:
                    self._move(rest)

    # ------------------------------------------------------------------ the end

    def give_up(self) -> None:
        """Take no more points, write what is left, and count as lost what cannot be written."""
        if self._live is not None:
            self._live.close()
        self.flush()
        if self._live is not None:
            # All that was in it is appended, or waits. It gives back room on a full disk, half of it for other files.
            is_enough = sum(file.num_pending_bytes for file in self.files) <= self._live.num_bytes // 2
            self._live.remove()
            if is_enough:
                self.flush()
        with self.turn:
            for file in self.files:
                file.give_up()

    def close(self) -> None:
        """Take no more points, write what is left, and close all files."""
        self.give_up()
        for file in self.files:
            file.close()

    # ------------------------------------------------------------------ a record that was begun before

    def recover(self) -> None:
        """Append what a process that was killed has left in `metrics.live`, and remove that file.

        Nobody else may write the run meanwhile. A kill on the way does no harm: this can be done again.

        Raises:
            OSError: If it cannot be written.
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
        """Append what forked children of a process that was killed have left; to be called after `recall`.

        Raises:
            OSError: If it cannot be written.
        """
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
        """Take over what is in the folder: ids, summaries, counts.

        Raises:
            OSError, ValueError: If it cannot be read.
        """
        with self.turn, self._naming:
            self._open_points()
            self._read_names()
            # A power cut may have taken the name of an id; its points are not to come under another one.
            self._next_id = max(self._next_id, int(read_intact_points(self.folder)[0]["metric"].max(initial=0)) + 1)
            self._sum_up_anew()
        self.count_from(read_position(self.folder)["metrics"])

    def _open_points(self) -> None:
        """Open the file of points, and forget checksums of those that a power cut has taken."""
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
        """Take the names over as they are in the file; one that is gone from there gets its number again."""
        self.names = read_names(self.folder)
        numbers = {key: number for number, key in self.names.items()}
        self._numbers |= numbers
        self._next_id = max(self._next_id, max(self.names, default=-1) + 1)
        # Others than before, for a thread that is about to log counts on what it has.
        self.metrics = {name: Metric(name) for name, _ in numbers}
        for (name, float_steps), number in numbers.items():
            if float_steps:
                self.metrics[name].float_tag = number + 1
            else:
                self.metrics[name].tag = number + 1

    def num_damaged(self) -> int:
        """Return how many points in the file are not as they were written; all of it is read."""
        points, count = read_intact_points(self.folder)
        return count - len(points)

    def replace(self, name: str, data: bytes) -> None:
        """Put other content in the place of one of its files, which is taken over by `recall`.

        Raises:
            OSError: If it cannot be written.
        """
        file = next(file for file in self.files if file.path.name == name)
        if file is not self._points:
            file.replace(data)
            return
        # Points without a checksum are taken as they are; those with the checksum of others would not be.
        self._sums.replace(b"")
        file.replace(data)
        self._sums.replace(entries_of(data, 0, POINT.itemsize))


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


def as_text(value: Any) -> str:
    """Return the text of any value, also of one that has none."""
    try:
        return str(value)
    except Exception:  # an int of more digits than Python writes, or an object that has no text
        return hex(value) if isinstance(value, int) else f"<{type(value).__name__}>"
