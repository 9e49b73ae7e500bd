"""`MetricsBuffer`: takes logged values, in the place of Sacred's MetricsLogger."""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from experiments.running.logged_values import as_name, as_number, as_step, caller, refusal
from observers.record.live_points import Metric
from observers.record.point_log import PointLog
from observers.record.schema import split_metrics

__all__ = ["MetricsBuffer"]

_log = logging.getLogger(__name__)


class MetricsBuffer:
    """Takes logged values, and packs them into the logs of those who record the run.

    That is done in the call, into memory that outlives the process (see `observers.record.live_points`), and costs less
    than a microsecond. A value of torch on a GPU is copied there and fetched with the heartbeat, so that logging never
    waits for the device.

    Attributes:
        feeds_others: Whether somebody asks `take` for points, who has no log of his own.
    """

    def __init__(self) -> None:
        self.feeds_others = False
        self._started = time()
        self._logs: list[PointLog] = []
        # What needs no more than a look at the types of value and step.
        self._quick: dict[str, Metric] = {}
        self._told: set[str] = set()
        self._lock = threading.RLock()
        self._taken: list[np.ndarray] = []
        self._taking = threading.RLock()
        self.write_to([])

    def write_to(self, logs: Sequence[PointLog], start: float | None = None) -> None:
        """Let points go to `logs`, which have begun; those of before go there, too.

        Args:
            logs: The logs; without any, points are held until they are taken.
            start: When the run started, in seconds since 1970.
        """
        earlier = [(log, log.drain()) for log in self._logs]
        self._started = self._started if start is None else start
        logs = list(logs)
        if not logs:
            logs.append(PointLog(None, _cannot_fail))
            logs[0].begin(self._started)
        self._logs, self._live, self._quick = logs, logs[0].live, {}
        for log, points in earlier:
            for name, series in split_metrics(points, log.names).items():
                for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
                    self.log_scalar_metric(name, value, step)

    def log_scalar_metric(self, name: str, value: Any, step: Any = None) -> None:
        """Take one value; without a step, one above the metric's last.

        Raises:
            TypeError: If the name is no string, the value no number, the step neither a number nor None.
            ValueError: If it is more than one value, or none; or beyond 64 bits.
        """
        try:
            metric = self._quick[name]
            if (
                type(value) is float
                and (type(step) is int or step is None)
                and self._live.add(metric, step, value, time())
            ):
                return
        except (KeyError, TypeError, struct.error):
            pass  # what is wrong is said there, if anything is
        self._take_any(name, value, step)

    def _take_any(self, name: Any, value: Any, step: Any) -> None:
        now = time()
        try:
            name, value, step = as_name(name), as_number(value), as_step(step)
            value = self._as_float(name, value)
        except (TypeError, ValueError) as error:
            raise refusal(error, "log_scalar", name) from error.__cause__
        with self._lock:
            first = self._logs[0].metrics.get(name)
            if isinstance(step, float) and step.is_integer() and not (first and first.float_tag):
                step = int(step)
            for log in self._logs:
                known = log.metrics.get(name)
                float_steps = isinstance(step, float) or (step is None and known and isinstance(known.last, float))
                metric = log.metric(name, float_steps=bool(float_steps))
                while not log.live.add_any(metric, step, value, now):
                    if not self._make_room(log):
                        return
                if step is None and len(self._logs) > 1:
                    step = metric.last
            if len(self._logs) == 1 and metric.tag:
                self._quick[name] = metric

    def _as_float(self, name: str, value: Any) -> Any:
        """Return a number as a float; say once of a metric's ints that they are none exactly."""
        if not isinstance(value, int):
            return value
        try:
            number = float(value)
        except OverflowError:
            raise ValueError("got an integer beyond what a float of 64 bits holds") from None
        if number != value and name not in self._told:
            self._told.add(name)
            _log.warning(
                "log_scalar(%r) in %s: got the integer %d, which a float of 64 bits cannot hold; it is recorded as %s, "
                "and further ones of this metric are rounded, too",
                name,
                caller(),
                value,
                number,
            )
        return number

    def _make_room(self, log: PointLog) -> bool:
        """Let a log write what it holds; return whether it takes points at all."""
        if log.live.is_closed:
            if "" not in self._told:
                self._told.add("")
                _log.warning("log_scalar in %s: the run has ended; this point, and what follows, is lost", caller())
            return False
        with self._taking:
            points = log.drain()
            if self.feeds_others and log is self._logs[0]:
                self._taken.append(points)
        return True

    def take(self) -> dict[str, dict[str, Any]]:
        """Let the logs write what came; return it in the form of Sacred's observers, if it `feeds_others`."""
        with self._taking:
            log, *others = self._logs
            points = [*self._taken, log.drain()]
            self._taken.clear()
        for other in others:
            other.drain()
        if not self.feeds_others:
            return {}
        began = datetime.fromtimestamp(self._started, UTC).replace(tzinfo=None)
        found = split_metrics(np.concatenate(points), log.names)
        return {
            name: {
                "name": name,
                "steps": series.steps.tolist(),
                "values": series.values.tolist(),
                "timestamps": [began + timedelta(seconds=seconds) for seconds in series.times.tolist()],
            }
            for name, series in found.items()
            if len(series)
        }

    def position(self) -> dict[str, list]:
        """Return how many values were logged of each metric so far, written or not, and the last step."""
        return self._logs[0].position()

    def go_on_from(self, position: Mapping[str, list]) -> None:
        """Count on from a position, to which all is added that is not written yet."""
        self._quick = {}
        for log in self._logs:
            log.go_on_from(position)


def _cannot_fail(path: Path, error: OSError) -> None:
    raise error
