"""Buffers of what a run logs: `MetricsBuffer` packs values into the logs of observers, `MediaBuffer` keeps media.

`MetricsBuffer` takes the place of Sacred's MetricsLogger. Media wait for the next heartbeat, which makes their files.
"""

from __future__ import annotations

import logging
import os
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sacred.metrics_logger import ScalarMetricLogEntry

from sacristan.configs.packages import numpy as np
from sacristan.experiments.running.logged_values import (
    EXACT,
    FLOATS,
    as_name,
    as_number,
    as_numbers,
    as_step,
    caller,
    check_countable,
    located,
    split_numbers,
)
from sacristan.observers.errors import MediaError, MetricError
from sacristan.observers.media import __all__ as KINDS
from sacristan.observers.media.kinds import Media
from sacristan.observers.record import run_clock
from sacristan.observers.record.media_files import Content, MediaEntry
from sacristan.observers.record.points import POINT, Metric, Names, split_metrics
from sacristan.observers.record.points.live_points import Row
from sacristan.observers.record.points.point_log import ChildPoint, ChildPoints, PointLog
from sacristan.observers.record.run_clock import now as run_time

_log = logging.getLogger(__name__)

# Numbers that are packed as a row, at the least and at the most, and how many rows are known at the most.
_LEAST_ROW, _MOST_ROW, _MOST_ROWS = 3, 1000, 100
# A Python built without it has no quick way to log; `_is_gil_enabled` is there from 3.13 on.
_HAS_INTERPRETER_LOCK = getattr(sys, "_is_gil_enabled", lambda: True)()


class MetricsBuffer:
    """Packs logged values into the logs of the observers that record the run.

    A call packs a value into memory that outlives the process, in less than a microsecond. A tensor on a GPU is copied
    there and fetched with the heartbeat, so that logging never waits for the device.
    """

    def __init__(self) -> None:
        self._started = run_time()
        self._logs: list[PointLog] = []
        # Metrics whose points need no more than a look at the types of value and step, and rows of them.
        self._quick: dict[str, Metric] = {}
        self._rows: dict[tuple[str, ...], Row] = {}
        # Metrics that were warned about; the empty name stands for the run.
        self._warned: set[str] = set()
        self._lock = threading.RLock()
        self._children: ChildPoints | None = None
        self._is_child = False
        self.write_to([], keeps_new=True)

    def write_to(self, logs: Sequence[PointLog], *, keeps_new: bool = False) -> None:
        """Write points, earlier ones too, to open logs; without logs, or with `keeps_new`, keep them for `take`."""
        before = self._logs[:1]
        logs = list(logs)
        if not logs:
            logs.append(PointLog())
            logs[0].begin(self._started)
        logs[0].keeps_new = keeps_new
        self._logs, self._live, self._quick, self._rows = logs, logs[0].live, {}, logs[0].rows
        for log in before:
            log.drain()
            new = log.take_new()
            for name, series in split_metrics(np.frombuffer(new, POINT), log.names).items() if new else ():
                for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
                    MetricsBuffer.log_scalar_metric(self, name, value, step)

    def log_scalar_metric(self, name: str, value: Any, step: Any = None) -> None:
        """Log one value of a metric, see `as_number`; without a step, it is one above the last."""
        try:
            metric = self._quick[name]
            kind = type(value)
            if (
                (kind in FLOATS or (kind is int and -EXACT <= value <= EXACT))
                and (type(step) is int or step is None)
                and self._live.add(metric, step, value, run_time())
            ):
                return
        except (KeyError, TypeError, struct.error):
            pass  # the slow way says what is wrong, if anything is
        self._take_any(name, value, step)

    def log_quickly(self, values: Mapping[str, Any], step: Any) -> Mapping[str, Any]:
        """Log plain numbers under known names, at a given step as a row in one call; return the other values."""
        if type(step) is not int and step is not None:
            return values
        now = run_time()
        left: dict[str, Any] = {}
        numbers = as_numbers(values)
        if numbers is None:
            numbers, left = split_numbers(values)
        if step is not None and _LEAST_ROW <= len(numbers) <= _MOST_ROW and -(2**63) <= step < 2**63:
            names = (*numbers,)
            row = self._rows.get(names) or self._new_row(names)
            if row is not None and self._live.add_row(row, step, numbers.values(), now):
                return left
        quick, add = self._quick, self._live.add
        for name, value in numbers.items():
            try:
                if add(quick[name], step, value, now):
                    continue
            except (KeyError, struct.error):
                pass
            left[name] = value
        return left

    def _new_row(self, names: tuple[str, ...]) -> Row | None:
        """Return a row of metrics, which is kept; None if one of them needs more than a look, or there are too many."""
        quick, rows = self._quick, self._rows
        metrics = [quick[name] for name in names if name in quick]
        if len(metrics) < len(names) or len(rows) >= _MOST_ROWS:
            return None
        return rows.setdefault(names, Row(metrics))  # another thread may have made one, which counts its points

    def _take_any(self, name: Any, value: Any, step: Any) -> None:
        now = run_time()
        try:
            name, value, step = as_name(name), as_number(value), as_step(step)
            value = self._as_float(name, value)
            if self._is_child:
                self._send(name, step, value, now)
            else:
                self._put(name, step, value, now)
        except MetricError as error:
            raise MetricError(located(error, "log_scalar", name)) from error.__cause__

    def _put(self, name: str, step: int | float | None, value: float | Callable[[], float], now: float) -> None:
        """Add a point to every log; `MetricError` if no step can be counted, or the run has too many metrics."""
        with self._lock:
            step = _countable(step, self._logs[0].metrics.get(name))
            for log in self._logs:
                metric = self._add(log, name, step, value, now)
                if metric is None:
                    return
                if len(self._logs) > 1 and step is None:
                    step = metric.last
            if len(self._logs) == 1 and metric and metric.tag and _HAS_INTERPRETER_LOCK:
                self._quick[name] = metric

    def _add(
        self, log: PointLog, name: str, step: int | float | None, value: float | Callable[[], float], now: float
    ) -> Metric | None:
        """Add a point to a log, and return its metric; None if the log no longer accepts points."""
        prior = log.metrics.get(name)
        float_steps = isinstance(step, float) or (step is None and prior is not None and isinstance(prior.last, float))
        metric = log.metric(name, float_steps=float_steps)
        while not log.live.add_any(metric, step, value, now):
            if not self._make_room(log):
                return None
        return metric

    def _as_float(self, name: str, value: Any) -> Any:
        """Return a number as a float; warn once if a metric has ints that no float holds exactly."""
        if not isinstance(value, int):
            return value
        try:
            number = float(value)
        except OverflowError:
            raise MetricError("got an integer beyond what a float of 64 bits holds") from None
        if number != value and name not in self._warned:
            self._warned.add(name)
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
        """Write the buffered points of a log; return whether it still accepts more."""
        if log.live.is_closed:
            if "" not in self._warned:
                self._warned.add("")
                _log.warning("log_scalar in %s: the run has ended; this point, and what follows, is lost", caller())
            return False
        log.drain()
        return True

    def look_with(self, look: Callable[[bytes, Names], None]) -> None:
        """Show all points, packed, and metric names by id to `look` when they are moved to the record."""
        self._logs[0].look = look

    def take(self, *, last: bool = False) -> dict[str, dict[str, Any]]:
        """Return new names, steps, values and times by metric for Sacred's observers; `last` ends those of children."""
        if self._children is not None and self._logs[0].folder is not None:
            self._take_children(self._children, self._logs[0].folder, last=last)
        log = self._logs[0]
        if not log.keeps_new:
            return {}
        log.drain()
        new = log.take_new()
        if not new:
            return {}
        began = datetime.fromtimestamp(log.live.start, UTC).replace(tzinfo=None)
        return {
            name: {
                "name": name,
                "steps": series.steps.tolist(),
                "values": series.values.tolist(),
                "timestamps": [began + timedelta(seconds=seconds) for seconds in series.times.tolist()],
            }
            for name, series in split_metrics(np.frombuffer(new, POINT), log.names).items()
            if len(series)
        }

    def get_last_metrics(self) -> list[ScalarMetricLogEntry]:
        """Return the points since the last call or heartbeat, as Sacred's logger does; our observers record them."""
        self._logs[0].keeps_new = True
        entries = [
            ScalarMetricLogEntry(name, *point)
            for name, series in self.take().items()
            for point in zip(series["steps"], series["timestamps"], series["values"], strict=True)
        ]
        return sorted(entries, key=lambda entry: entry.timestamp)

    def _take_children(self, children: ChildPoints, folder: Path, *, last: bool) -> None:
        """Add the points of forked children."""
        children.folder = folder
        with children.taken(last=last) as sent:
            for name, step, value, seconds in sent:
                try:
                    self._put(name, step, value, self._live.start + seconds)
                except MetricError as error:
                    _log.error("a point of a forked child is lost: log_scalar(%r): %s", name, error)

    # ------------------------------------------------------------------ forked children

    def before_fork(self) -> None:
        """Create the file through which a child sends its points."""
        folder = self._logs[0].folder
        if folder is not None and not self._is_child and not self._live.is_closed:
            if self._children is None:
                self._children = ChildPoints(folder)
            self._children.folder = folder
            self._children.create()

    def after_fork_in_child(self) -> None:
        """Send points to the parent from now on; its memory is not touched."""
        self._is_child, self._quick, self._rows = True, {}, {}
        self._lock = threading.RLock()
        if self._children is not None:
            self._children.after_fork()

    def _send(self, name: str, step: int | float | None, value: float | Callable[[], float], now: float) -> None:
        if self._children is None:  # the run is recorded in no folder
            return
        try:
            value = value() if callable(value) else value
            self._children.add(ChildPoint(name, step, value, now - self._live.start))
        except OSError as error:
            if "" not in self._warned:
                self._warned.add("")
                reason = "it has ended" if isinstance(error, FileNotFoundError) else error.strerror
                _log.warning(
                    "log_scalar in %s: process %d cannot log into the run that it was forked from (%s); its points "
                    "from here on are lost",
                    caller(),
                    os.getpid(),
                    reason,
                )

    # ------------------------------------------------------------------ positions

    def position(self) -> dict[str, list]:
        """Return, by metric, the number of values logged so far, written or not, and the last step."""
        return self._logs[0].position()

    def count_from(self, position: Mapping[str, list]) -> None:
        """Continue counts and steps from a result of `position`; points not written yet are counted on top."""
        self._quick = {}
        for log in self._logs:
            log.count_from(position)
        self._rows = self._logs[0].rows


def _countable(step: int | float | None, metric: Metric | None) -> int | float | None:
    """Return the step of a metric, a whole float as an int unless its steps are floats; check that one can follow."""
    if step is None:
        if metric is not None:
            check_countable(metric.last)
        return None
    is_whole = isinstance(step, float) and step.is_integer() and abs(step) < 2**63
    return int(step) if is_whole and not (metric and metric.float_tag) else step


# ---------------------------------------------------------------------- media

MAX_WAITING_BYTES = 256 * 2**20


class MediaBuffer:
    """Keeps media until `take` encodes them; beyond `MAX_WAITING_BYTES`, `add` does, and slows down its caller."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[tuple, Media | Content | None, int]] = deque()
        self._waiting_bytes = 0
        self._next_step: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, name: str, media: Media, step: int | float | None = None) -> None:
        """Add an image, a table, ... to a series; without a step, it is one above the last."""
        at = run_clock.now()
        try:
            name, step = as_name(name), as_step(step)
            if not isinstance(media, Media):
                kinds = ", ".join(sorted({*KINDS} - {"Media"}))
                raise MetricError(f"got a {type(media).__name__}, expected one of {kinds} of the package observers")
            if step is None:
                last = self._next_step.get(name, -1)
                check_countable(last)
                step = last + 1
        except MetricError as error:
            raise MediaError(located(error, "log_media", name)) from None
        self._next_step[name] = step
        media = media.as_logged()
        held: Media | Content | None = media
        num_bytes = media.num_bytes
        if self._waiting_bytes + num_bytes > MAX_WAITING_BYTES:
            held = _encoded(name, step, media)
            num_bytes = 0 if held is None else held.num_bytes
        with self._lock:
            self._waiting.append(((name, media.kind, step, at), held, num_bytes))
            self._waiting_bytes += num_bytes
            self._counts[name] = self._counts.get(name, 0) + 1

    def position(self) -> dict[str, list]:
        """Return, by series, the number of media logged so far, taken or not, and the last step."""
        return {name: [count, self._next_step[name]] for name, count in self._counts.copy().items()}

    def count_from(self, position: Mapping[str, list]) -> None:
        """Continue counts and steps from a result of `position`; waiting media do not count."""
        self._counts = {name: count for name, (count, _) in position.items()}
        self._next_step = {name: step for name, (_, step) in position.items()}

    def clear(self) -> None:
        """Drop the waiting media: no observer keeps them."""
        with self._lock:
            self._waiting.clear()
            self._waiting_bytes = 0

    def take(self, until: float) -> list[MediaEntry]:
        """Encode waiting media, oldest first, starting none after `until`, and return them."""
        entries = []
        while self._waiting and time.monotonic() < until:
            with self._lock:
                (name, kind, step, at), held, num_bytes = self._waiting.popleft()
                self._waiting_bytes -= num_bytes
            content = _encoded(name, step, held) if isinstance(held, Media) else held
            entries.append(MediaEntry(name, kind, step, at, content))
        return entries


def _encoded(name: str, step: Any, media: Media) -> Content | None:
    try:
        return media.encode()
    except Exception:
        # Such as a lack of memory; invalid media were rejected when they were made.
        _log.exception("%s, step %s: the file of this %s could not be made, and is lost", name, step, media.kind)
        return None
