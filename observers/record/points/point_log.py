"""The log of a run's points: any thread or forked child adds points, and the owner moves them to where they are kept.

The memory for points belongs to the parent, and must not have a second writer. A child appends its points to a file in
the run's folder, one JSON line each, and the parent moves them into the record with its heartbeats. Both lock the file
while they use it, so no line is torn and none is written while the file is emptied. The first line of the file is the
offset of the first point that was not moved: a parent that is killed halfway moves no point twice. The next writer of
the record moves the points that a killed parent left.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sacristan.observers.errors import MetricError
from sacristan.observers.record.append_file import pwrite
from sacristan.observers.record.files import BINARY
from sacristan.observers.record.points import Metric, Names, is_rewound
from sacristan.observers.record.points.live_points import HALF_POINTS, MAX_METRICS, Half, LivePoints, Row
from sacristan.observers.record.schema import CHILD_POINTS

try:
    import fcntl
except ImportError:  # on Windows, which does not fork either
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)


class PointLog:
    """Takes the points of one run; a subclass such as `PointFiles` keeps them.

    Any thread may log, and waits for nothing but room in memory. Only one thread at a time may move points.

    Attributes:
        folder: The record's folder; None without a record.
        names: By metric id: the name, and whether steps are floats.
        rows: By their names: metrics that are logged together again and again.
        keeps_new: Whether moved points are kept for `take_new`.
        look: Called with the points, packed, and `names` whenever points were moved.
        turn: The lock held while points are moved.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.metrics: dict[str, Metric] = {}
        self.names: dict[int, tuple[str, bool]] = {}
        self.rows: dict[tuple[str, ...], Row] = {}
        self.keeps_new = False
        self.look: Callable[[bytes, Names], None] | None = None
        self.turn = threading.RLock()
        self._live: LivePoints | None = None
        self._is_draining = False
        self._num_lost_points = 0
        self._new: list[bytes] = []
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

    def take_new(self) -> bytes:
        """Return the points moved since the last call, packed; none unless `keeps_new` is set."""
        with self.turn:
            new = b"".join(self._new)
            self._new.clear()
        return new

    # Subclasses that keep names and points override these.

    def _write_name(self, number: int, name: str, float_steps: bool) -> None:
        """Store the name of a new id, before any point has that id."""

    def _num_points(self) -> int:
        """Return the number of points kept."""
        return 0

    def _keep(self, base: int, points: bytes) -> None:
        """Keep packed points that follow `base` others, except those that are kept already."""

    # ------------------------------------------------------------------ counting

    def position(self) -> dict[str, list]:
        """Return the number of points and the last step of each metric that is rewound, moved or not."""
        in_rows: Counter[str] = Counter()
        for names, row in self.rows.copy().items():
            in_rows.update(dict.fromkeys(names, row.count))
        return {
            name: [count, metric.last]
            for name, metric in self.metrics.copy().items()
            if (count := metric.count + in_rows[name]) and is_rewound(name)
        }

    def count_from(self, position: Mapping[str, list]) -> None:
        """Set the count and last step of each metric from a `position`, and add the points that have not been moved."""
        waiting: Counter[str] = Counter()
        if self._live is not None:
            for number, count in self._live.num_waiting().items():
                waiting[self.names.get(number, ("", False))[0]] += count
        self.rows = {}
        for metric in self.metrics.copy().values():
            if is_rewound(metric.name):
                metric.count, metric.last = waiting[metric.name], -1
        for name, (count, last) in position.items():
            with self._naming:
                metric = self.metrics.setdefault(name, Metric(name))
            metric.count += count
            metric.last = metric.last if last is None else last


# ---------------------------------------------------------------------- points of forked children

_HEAD = b"%020d\n"
_HEAD_BYTES = len(_HEAD % 0)
# How long the parent waits for a child that was stopped while it holds the lock: at a heartbeat, and at the end.
_PATIENCE_S, _LAST_PATIENCE_S = 0.5, 5.0


class ChildPoint(NamedTuple):
    """A point logged by a child, `seconds` after the start of the run.

    A step of None is one above the metric's last, which only the parent knows.
    """

    name: str
    step: int | float | None
    value: float
    seconds: float


class ChildPoints:
    """The file that the children of one run log to; the recording process creates it before it forks.

    The owner updates `folder` if that is moved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fd: int | None = None
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder.absolute() / CHILD_POINTS

    def create(self) -> None:
        """Create the file unless it exists; if that fails, a child's `add` raises."""
        with contextlib.suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
            try:
                os.write(fd, _HEAD % _HEAD_BYTES)
            finally:
                os.close(fd)

    def after_fork(self) -> None:
        """Reset what a child has inherited: the parent's descriptor, and a lock that another thread may have held."""
        self._fd, self._lock = None, threading.Lock()
        # Opened now, because a later file of this name belongs to another session.
        with contextlib.suppress(OSError):
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | BINARY)

    def add(self, point: ChildPoint) -> None:
        """Append a point, from a child; raise FileNotFoundError if the run has ended, so nobody would read it."""
        line = json.dumps(point).encode() + b"\n"
        with self._lock:
            if self._fd is None:
                raise FileNotFoundError(self.path)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                status = os.fstat(self._fd)
                if not status.st_nlink:
                    raise FileNotFoundError(self.path)
                if os.write(self._fd, line) < len(line):  # the disk is full
                    os.ftruncate(self._fd, status.st_size)
                    os.write(self._fd, line)
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def taken(self, *, last: bool = False) -> Iterator[Iterator[ChildPoint]]:
        """Yield the points that were not moved yet, and empty the file if the block succeeds; if `last`, remove it.

        A point counts as moved when the next one is asked for. If a child was stopped while it holds the lock, the
        points come with a later call.
        """
        with _locked(self.path, _LAST_PATIENCE_S if last else _PATIENCE_S) as fd:
            if fd is None:
                yield iter(())
                return
            yield self._points(fd)
            os.ftruncate(fd, _HEAD_BYTES)
            pwrite(fd, _HEAD % _HEAD_BYTES, 0)
            if last:
                self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def left(self) -> Iterator[list[ChildPoint]]:
        """Yield the points that a killed process left, and remove the file if the block succeeds."""
        with _locked(self.path, _LAST_PATIENCE_S) as fd:
            if fd is None:
                yield []
                return
            yield list(self._points(fd, advances=False))
            self.path.unlink(missing_ok=True)

    def _points(self, fd: int, *, advances: bool = True) -> Iterator[ChildPoint]:
        size = os.fstat(fd).st_size
        with os.fdopen(os.dup(fd), "rb") as stream:
            with contextlib.suppress(ValueError):
                start = int(stream.read(_HEAD_BYTES) or _HEAD_BYTES)
                stream.seek(start if start <= size else _HEAD_BYTES)
            at = stream.tell()
            for line in stream:
                try:
                    name, step, value, seconds = json.loads(line)
                    yield ChildPoint(str(name), step, float(value), float(seconds))
                except (ValueError, TypeError):
                    _log.warning("%s: a line of %d bytes is damaged, and left out", self.path, len(line))
                at += len(line)
                if advances:
                    pwrite(fd, _HEAD % at, 0)


@contextlib.contextmanager
def _locked(path: Path, patience_s: float) -> Iterator[int | None]:
    """Open and lock a file; yield None if there is none, or another process holds the lock for too long."""
    try:
        fd = os.open(path, os.O_RDWR | BINARY)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):  # there is none until the process forks
            _log.warning("%s cannot be read (%s); it is retried", path, error.strerror)
        yield None
        return
    try:
        is_locked = _lock(fd, patience_s)
        if not is_locked:
            _log.warning("%s: a forked child holds it, and has stopped; what children log waits for it", path)
        yield fd if is_locked else None
    finally:
        # Closing alone would not release it: a child that is forked in the meantime has it open, too.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _lock(fd: int, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
