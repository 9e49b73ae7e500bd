"""The log of a run's points: any thread adds points, and the owner moves them to where they are kept."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from sacristan.observers.errors import MetricError
from sacristan.observers.record.points.live_points import HALF_POINTS, MAX_METRICS, Half, LivePoints
from sacristan.observers.record.points.points import POINT, Metric, Names, is_rewound

__all__ = ["PointLog"]

_NONE = np.empty(0, POINT)


class PointLog:
    """Takes the points of one run; a subclass such as `PointFiles` keeps them.

    Any thread may log, and waits for nothing but room in memory. Only one thread at a time may move points.

    Attributes:
        folder: The record's folder; None without a record.
        names: By metric id: the name, and whether steps are floats.
        keeps_new: Whether moved points are kept for `take_new`.
        look: Called with the points and `names` whenever points were moved.
        turn: The lock held while points are moved.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.metrics: dict[str, Metric] = {}
        self.names: dict[int, tuple[str, bool]] = {}
        self.keeps_new = False
        self.look: Callable[[np.ndarray, Names], None] | None = None
        self.turn = threading.RLock()
        self._live: LivePoints | None = None
        self._is_draining = False
        self._num_lost_points = 0
        self._new: list[np.ndarray] = []
        self._naming = threading.RLock()
        self._next_id = 0
        # The id of every name this process has met.
        self._numbers: dict[tuple[str, bool], int] = {}

    # ------------------------------------------------------------------ logging

    @property
    def live(self) -> LivePoints:
        """The memory that takes points, after `begin`."""
        if self._live is None:
            raise RuntimeError("a PointLog takes points after `begin` only; call it first")
        return self._live

    def begin(self, start: float, half_points: int = HALF_POINTS, path: Path | None = None, base: int = 0) -> None:
        """Take points from now on.

        `half_points` have room until they are moved; `base` points were logged before. Without a `path` to map into
        memory, points are lost with the process.
        """
        self._live = LivePoints(path, start, base, half_points)

    def metric(self, name: str, *, float_steps: bool = False) -> Metric:
        """Return a metric, with an id for points whose steps are ints, or floats.

        A new name gets an id, which is stored before any of its points. Raises MetricError if there are too many
        metrics.
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

    # ------------------------------------------------------------------ moving points

    def drain(self) -> None:
        """Move all points logged so far to where they are kept."""
        with self.turn:
            if self._live is None or self._is_draining:  # draining: a signal handler interrupted it
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
        if self.look is not None:
            self.look(points, self.names)
        half.clear()

    def take_new(self) -> np.ndarray:
        """Return the points (n,) of `POINT` moved since the last call; none unless `keeps_new` is set."""
        with self.turn:
            new = np.concatenate([_NONE, *self._new])
            self._new.clear()
        return new

    # Subclasses that keep names and points override these.

    def _write_name(self, number: int, name: str, float_steps: bool) -> None:
        """Store the name of a new id, before any point has that id."""

    def _num_points(self) -> int:
        """Return the number of points kept."""
        return 0

    def _keep(self, base: int, points: np.ndarray) -> None:
        """Keep points (n,) that follow `base` others, except those that are kept already."""

    # ------------------------------------------------------------------ counting

    def position(self) -> dict[str, list]:
        """Return the number of points and the last step of each metric that is rewound, moved or not."""
        return {
            name: [metric.count, metric.last]
            for name, metric in self.metrics.copy().items()
            if metric.count and is_rewound(name)
        }

    def count_from(self, position: Mapping[str, list]) -> None:
        """Set the count and last step of each metric from a `position`, and add the points that have not been moved."""
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
