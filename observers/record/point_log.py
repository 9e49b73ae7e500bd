"""The points of a run: taken in memory, appended to `metrics.bin`, summed up by metric."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from observers.record.append_file import AppendFile
from observers.record.live_points import HALF_POINTS, MAX_METRICS, Half, LivePoints, Metric
from observers.record.rewinding import is_rewound, read_position
from observers.record.schema import LIVE, NAMES, POINT, POINTS, VALUES, read_live, read_names, read_points
from observers.record.summaries import add_to_summaries, summaries

__all__ = ["PointLog"]

_log = logging.getLogger(__name__)
_SUMMARY_POINTS = 2**18
_NONE = np.empty(0, POINT)


class PointLog:
    """Writes the points of one run; without a folder it only hands them on.

    Any thread may log. All that writes waits for its turn, and logging for nothing but a lack of room in memory.

    Args:
        folder: The run's folder, which exists; None keeps nothing.
        say: Called with a path and an error for what cannot be written, and is tried again.

    Attributes:
        metrics: What was logged of each metric, by name.
        names: Name, and whether steps are floats, of each metric's id.
        summary: The summary of each metric, of the points in the file; another object where there are more.
        live: Takes points; None before `begin`.
        keeps_new: Whether somebody asks `take_new` for points.
        turn: Held by who writes.
    """

    def __init__(self, folder: Path | None, say: Callable[[Path, OSError], None]) -> None:
        self.folder = folder
        self.metrics: dict[str, Metric] = {}
        self.names: dict[int, tuple[str, bool]] = {}
        self.live: LivePoints | None = None
        self.keeps_new = False
        self._new: list[np.ndarray] = []
        self._say = say
        base = folder or Path()
        self._points = AppendFile(base / POINTS, POINT.itemsize)
        self._names = AppendFile(base / NAMES)
        self._values = AppendFile(base / VALUES)
        self._next_id = 0
        # The number of every name that this process has met.
        self._numbers: dict[tuple[str, bool], int] = {}
        self._num_lost_points = 0
        # The summaries, and how many points of the file they are of, which change together.
        self._summed_up: tuple[dict[str, dict[str, Any]], int] = ({}, 0)
        self.turn = threading.RLock()
        self._is_draining = False
        self._naming = threading.RLock()
        if folder is not None:
            self._read_names()

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """See the class."""
        return self._summed_up[0]

    @property
    def files(self) -> tuple[AppendFile, ...]:
        """Its files, in the order in which they are to be written."""
        return self._names, self._points, self._values

    @property
    def num_lost_bytes(self) -> int:
        """Bytes that were given up."""
        return sum(file.num_lost_bytes for file in self.files) + self._num_lost_points * POINT.itemsize

    # ------------------------------------------------------------------ logging

    def begin(self, start: float, half_points: int = HALF_POINTS) -> None:
        """Take points from now on, in memory that outlives the process where that is possible.

        Args:
            start: When the run started, in seconds since 1970.
            half_points: How many points there is room for, until they are written.
        """
        with self.turn:
            path = None if self.folder is None else self.folder / LIVE
            with contextlib.suppress(OSError):
                self._points.create()
            self.live = LivePoints(path, start, self._points.num_records, half_points)
        if self.live.trouble is not None:
            _log.warning(
                "%s: the latest points are kept in memory alone (%s); if this process is killed, those since the last "
                "heartbeat are lost",
                self.folder,
                self.live.trouble,
            )

    def metric(self, name: str, *, float_steps: bool = False) -> Metric:
        """Return what the points of a metric are tagged with; the name of a new one is written before this returns."""
        with self._naming:
            metric = self.metrics.get(name) or Metric(name)
            if float_steps:
                metric.float_tag = metric.float_tag or self._new_id(name, True) + 1
            else:
                metric.tag = metric.tag or self._new_id(name, False) + 1
            self.metrics[name] = metric
            return metric

    def _new_id(self, name: str, float_steps: bool) -> int:
        number = self._numbers.get((name, float_steps), self._next_id)
        if number >= MAX_METRICS:
            raise ValueError(f"{name!r}: a run has no more than {MAX_METRICS} metrics; log fewer names")
        self._next_id = max(self._next_id, number + 1)
        self._numbers[name, float_steps] = number
        if self.folder is not None:
            row = {"id": number, "name": name, **({"steps": "float"} if float_steps else {})}
            self._append(self._names, json.dumps(row).encode() + b"\n")
        self.names[number] = (name, float_steps)
        return number

    def drain(self) -> None:
        """Append what was logged up to now to the file.

        What cannot be written waits, and is tried again with the next call.
        """
        with self.turn:
            if self.live is None or self._is_draining:  # a signal came in the middle of it, and its handler drains, too
                return
            self._is_draining = True
            try:
                leftover = self.live.leftover()
                if leftover is not None:
                    self._store(leftover)
                half = self.live.swap(self._points.num_records)
                if half is not None:
                    self._store(half)
            finally:
                self._is_draining = False

    def take_new(self) -> np.ndarray:
        """Return the points (n,) of `schema.POINT` that were moved away since the last call, if this `keeps_new`."""
        with self.turn:
            new = np.concatenate([_NONE, *self._new])
            self._new.clear()
        return new

    def _store(self, half: Half) -> None:
        """Append the points of a half, but for those that are there."""
        points, num_failed = half.points()
        self._num_lost_points += num_failed
        if self.folder is not None:
            self._append(self._points, points[max(0, self._points.num_records - half.base) :].tobytes())
            self._sum_up(half.base, points)
        if self.keeps_new:
            self._new.append(points)
        half.clear()

    def add_batch(self, name: str, steps: list, values: list, ticks: np.ndarray) -> None:
        """Append points of one metric; for who has not called `begin`.

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
            start = self._points.num_records
            self._append(self._points, points.tobytes())
            self._sum_up(start, points)

    def _add_one_by_one(self, name: str, steps: list, values: list, ticks: np.ndarray) -> None:
        """Append what is not all numbers of 64 bits."""
        for step, value, tick in zip(steps, values, ticks, strict=True):
            try:
                _as_points([step], [value], np.array([tick]))
            except (TypeError, ValueError, OverflowError):
                after = self.summary.get(name, {}).get("count", 0)
                row = {"name": name, "step": step, "time": int(tick), "value": _as_text(value), "after": after}
                self._append(self._values, json.dumps(row, default=_as_text).encode() + b"\n")
            else:
                self.add_batch(name, [step], [value], np.array([tick]))

    # ------------------------------------------------------------------ writing

    def flush(self) -> None:
        """Write what was logged, and what failed before."""
        try:
            self.flush_or_raise()
        except OSError as error:
            self._say(self._points.path, error)

    def flush_or_raise(self) -> None:
        """Do as `flush` does.

        Raises:
            OSError: If something cannot be written; it waits then.
        """
        self.drain()
        if self.folder is None:
            return
        with self.turn:
            with self._naming:
                self._names.append(b"")
            self._points.append(b"")
            self._values.append(b"")
            self._sum_up()

    def sync(self) -> None:
        """Wait until all points are on the disk.

        Raises:
            OSError: If something cannot be written.
        """
        self.flush_or_raise()
        for file in self.files:
            file.sync()

    def _sum_up(self, start: int = 0, known: np.ndarray = _NONE) -> None:
        """Bring the summary up to the points in the file.

        Args:
            start: Where those begin that are at hand.
            known: Those (n,).
        """
        summary, done = self._summed_up
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

    def _append(self, file: AppendFile, data: bytes) -> None:
        try:
            file.append(data)
        except OSError as error:
            self._say(file.path, error)

    def close(self) -> None:
        """Take no more points, write what is left, and close all files."""
        if self.live is not None:
            self.live.close()
        self.flush()
        if self.live is not None:
            self.live.remove()
        for file in self.files:
            file.close()

    # ------------------------------------------------------------------ a log that was begun before

    def recover(self) -> int:
        """Append what a process that was killed has left in `metrics.live`, remove that file, and return how much.

        Nobody else may write the run meanwhile. A kill on the way does no harm: this can be done again.

        Raises:
            OSError: If it cannot be written.
        """
        live = read_live(self.folder)
        if not (self.folder / LIVE).exists():
            return 0
        self._points.create()
        before = self._points.num_records
        for base, points in live:
            self._points.append(points[max(0, self._points.num_records - base) :].tobytes())
        self._points.sync()
        (self.folder / LIVE).unlink()
        return self._points.num_records - before

    def recall(self) -> None:
        """Take over what is in the folder: ids, summaries, counts.

        Raises:
            OSError, ValueError: If it cannot be read.
        """
        with self.turn, self._naming:
            self._points.create()
            self._read_names()
            # A power cut may have taken the name of an id; its points are not to come under another one.
            self._next_id = max(self._next_id, int(read_points(self.folder)["metric"].max(initial=0)) + 1)
            self._summed_up = summaries(self.folder), self._points.num_written
        self.go_on_from(read_position(self.folder)["metrics"])

    def _read_names(self) -> None:
        """Take the names over as they are in the file; one that is gone from there gets its number again."""
        self.names = read_names(self.folder)
        numbers = {key: number for number, key in self.names.items()}
        self._numbers |= numbers
        self._next_id = max(self._next_id, max(self.names, default=-1) + 1)
        metrics = {}
        for (name, float_steps), number in numbers.items():
            metric = metrics.setdefault(name, Metric(name))
            if float_steps:
                metric.float_tag = number + 1
            else:
                metric.tag = number + 1
        # Others than before, for a thread that is about to log counts on what it has.
        self.metrics = metrics

    def replace(self, name: str, data: bytes) -> None:
        """Put other content in the place of one of its files, up to a `recall`.

        Raises:
            OSError: If it cannot be written.
        """
        next(file for file in self.files if file.path.name == name).replace(data)

    def position(self) -> dict[str, list]:
        """Return how many points were logged of each metric, written or not, and the last step."""
        return {
            name: [metric.count, metric.last]
            for name, metric in self.metrics.copy().items()
            if metric.count and is_rewound(name)
        }

    def go_on_from(self, position: Mapping[str, list]) -> None:
        """Count on from a position, to which all is added that is not written yet."""
        waiting: Counter[str] = Counter()
        if self.live is not None:
            for number, count in self.live.num_waiting().items():
                waiting[self.names.get(number, ("", False))[0]] += count
        for metric in self.metrics.copy().values():
            if is_rewound(metric.name):
                metric.count, metric.last = waiting[metric.name], -1
        for name, (count, last) in position.items():
            with self._naming:
                metric = self.metrics.setdefault(name, Metric(name))
            metric.count += count
            metric.last = metric.last if last is None else last


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
    except Exception:  # an int of more digits than Python writes, or an object that has no text
        return hex(value) if isinstance(value, int) else f"<{type(value).__name__}>"
