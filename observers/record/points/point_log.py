"""The log of a run's points: where any thread puts them, and from where they go to whoever records them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from observers.errors import MetricError
from observers.record.points.live_points import HALF_POINTS, MAX_METRICS, Half, LivePoints, Metric
from observers.record.points.points import POINT
from observers.record.points.rewinding import is_rewound

__all__ = ["PointLog"]

_NONE = np.empty(0, POINT)


class PointLog:
    """Takes the points of one run, and keeps none of them itself; see `observers.record.points.point_files`.

    Any thread may log, which waits for nothing but for room in memory. To move points away is for one thread at a time.

    Attributes:
        folder: The folder of the record; None without one.
        metrics: What was logged of each metric, by name.
        names: Name, and whether steps are floats, of each metric's id.
        keeps_new: Whether somebody asks `take_new` for points.
        turn: Held by who moves points away.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.metrics: dict[str, Metric] = {}
        self.names: dict[int, tuple[str, bool]] = {}
        self.keeps_new = False
        self.turn = threading.RLock()
        self._live: LivePoints | None = None
        self._is_draining = False
        self._num_lost_points = 0
        self._new: list[np.ndarray] = []
        self._naming = threading.RLock()
        self._next_id = 0
        # The number of every name that this process has met.
        self._numbers: dict[tuple[str, bool], int] = {}

    # ------------------------------------------------------------------ logging

    @property
    def live(self) -> LivePoints:
        """Log that takes points, after `begin`."""
        if self._live is None:
            raise RuntimeError("a PointLog takes points after `begin` only; call it first")
        return self._live

    def begin(self, start: float, half_points: int = HALF_POINTS, path: Path | None = None, base: int = 0) -> None:
        """Take points from now on.

        Args:
            start: When the run started, in seconds since 1970.
            half_points: How many points there is room for until they are moved away.
            path: The file that is mapped into memory; None is memory that goes with the process.
            base: How many points there are already.
        """
        self._live = LivePoints(path, start, base, half_points)

    def metric(self, name: str, *, float_steps: bool = False) -> Metric:
        """Return what the points of a metric are tagged with.

        Raises:
            MetricError: If there are more metrics than a run can have.
        """
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
            raise MetricError(f"{name!r}: a run has no more than {MAX_METRICS} metrics; log fewer names")
        self._next_id = max(self._next_id, number + 1)
        self._numbers[name, float_steps] = number
        self._write_name(number, name, float_steps)
        self.names[number] = (name, float_steps)
        return number

    # ------------------------------------------------------------------ moving points away

    def drain(self) -> None:
        """Move away what was logged up to now."""
        with self.turn:
            if self._live is None or self._is_draining:  # by the handler of a signal that came in the middle of it
                return
            self._is_draining = True
            try:
                leftover = self._live.leftover()
                if leftover is not None:
                    self._move(leftover)
                half = self._live.swap(self._num_points())
                if half is not None:
                    self._move(half)
            finally:
                self._is_draining = False

    def _move(self, half: Half) -> None:
        points, num_failed = half.points()
        self._num_lost_points += num_failed
        self._keep(half.base, points)
        if self.keeps_new:
            self._new.append(points)
        half.clear()

    def take_new(self) -> np.ndarray:
        """Return the points (n,) of `schema.POINT` that were moved away since the last call, if this `keeps_new`."""
        with self.turn:
            new = np.concatenate([_NONE, *self._new])
            self._new.clear()
        return new

    # What is done with names and points, by those who keep them.

    def _write_name(self, number: int, name: str, float_steps: bool) -> None:
        """Keep the name of a new id, before a point has it."""

    def _num_points(self) -> int:
        """Return how many points are kept."""
        return 0

    def _keep(self, base: int, points: np.ndarray) -> None:
        """Keep points (n,), but for those that are kept already; `base` come before the first."""

    # ------------------------------------------------------------------ counting

    def position(self) -> dict[str, list]:
        """Return how many points were logged of each metric, moved away or not, and the last step."""
        return {
            name: [metric.count, metric.last]
            for name, metric in self.metrics.copy().items()
            if metric.count and is_rewound(name)
        }

    def count_from(self, position: Mapping[str, list]) -> None:
        """Count on from a position, to which all is added that was not moved away yet."""
        waiting: Counter[str] = Counter()
        if self._live is not None:
            for number, count in self._live.num_waiting().items():
                waiting[self.names.get(number, ("", False))[0]] += count
        for metric in self.metrics.copy().values():
            if is_rewound(metric.name):
                metric.count, metric.last = waiting[metric.name], -1
        for name, (count, last) in position.items():
            with self._naming:
                metric = self.metrics.setdefault(name, Metric(name))
            metric.count += count
            metric.last = metric.last if last is None else last
