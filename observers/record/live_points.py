"""Points on their way to the journal, in memory that outlives the process.

A point that is logged is packed into `metrics.live`, a small file of the run's folder that is mapped into memory. When
the process is killed, the kernel still has it, and readers find it there. The heartbeat moves what has come to
`metrics.bin`; when the run ends, the file goes.

The file has two halves (see `observers.record.schema`): points go into one while those of the other are appended to
`metrics.bin`. The tag of a point is written last: one that was half written when the process was killed has none, and
is no point.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import struct
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from observers.record.mapped_file import mapped
from observers.record.points import SLOT, STAMP_SHIFT, TICKS_PER_S, points_in

__all__ = ["HALF_POINTS", "MAX_METRICS", "Half", "LivePoints", "Metric"]

_log = logging.getLogger(__name__)

HALF_POINTS = 65_535
_SLOT_BYTES = SLOT.itemsize
# In native mode the tag is one store of four bytes, behind the others.
_PACK = struct.Struct("@qdII").pack_into
_BASE = struct.Struct("@Q").pack_into
_BITS, _FLOAT = struct.Struct("@q"), struct.Struct("@d")

MAX_METRICS = 2**STAMP_SHIFT - 1
_MAX_TICK = 2**32 - 1


class Metric:
    """One metric: what its points are tagged with, and how far it got.

    Attributes:
        name: Its name.
        tag: Of its points whose step is an int: an id plus one; 0 while it has none.
        float_tag: The same of those whose step is a float.
        count: How many of its points were logged.
        last: The last step; -1 before the first.
    """

    __slots__ = ("count", "float_tag", "last", "name", "tag")

    def __init__(self, name: str, count: int = 0, last: int | float = -1) -> None:
        self.name = name
        self.tag = self.float_tag = 0
        self.count = count
        self.last = last


class Half:
    """One half of the memory.

    Attributes:
        at: Where its slots begin in the memory.
        num_used: How many slots are taken, once it is filled; 0 of a clean one.
        later: Points whose value comes later: place, step's bits, what fetches the value, time, tag.
    """

    def __init__(self, memory: mmap.mmap, offset: int, num_slots: int) -> None:
        self._memory = memory
        self._offset = offset
        self.at = offset + _SLOT_BYTES
        self.end = self.at + num_slots * _SLOT_BYTES
        self._slots = np.frombuffer(memory, SLOT, num_slots, self.at)
        self.num_used = 0
        self.base = 0
        self.stamp = 0
        self.later: list[tuple[int, int, Callable[[], float], int, int]] = []

    def set_base(self, base: int) -> None:
        """Say how many points come before its first one."""
        self.base = base
        _BASE(self._memory, self._offset, base)

    def open(self, base: int) -> None:
        """Begin to fill it, which is clean."""
        self.set_base(base)
        self.stamp = self.stamp % 255 + 1
        _BASE(self._memory, self._offset + 8, self.stamp)

    def points(self) -> tuple[np.ndarray, int]:
        """Return its points (n,) in the journal's form, and how many values could not be fetched.

        A slot that was taken and not written, because an exception came in between, is none of them.
        """
        num_failed = 0
        while self.later:
            at, bits, fetch, time, tag = self.later[-1]
            try:
                _PACK(self._memory, at, bits, fetch(), time, tag)
            except Exception as error:
                num_failed += 1
                _log.error("a value could not be fetched from its device (%s: %s)", type(error).__name__, error)
            self.later.pop()
        return points_in(self._slots[: self.num_used], self.stamp), num_failed

    def ids(self, num_slots: int) -> list[int]:
        """Return the metric of each point in its first slots, also of those whose value comes later."""
        there = points_in(self._slots[:num_slots], self.stamp)["metric"].tolist()
        return there + [(tag & MAX_METRICS) - 1 for *_, tag in self.later]

    def clear(self) -> None:
        """Make it clean."""
        self._slots[: self.num_used] = 0
        self.num_used = 0


class LivePoints:
    """Takes points, from any thread, in well under a microsecond.

    Args:
        path: The file; None, or where it cannot be mapped, is memory that goes with the process.
        start: When the run started, in seconds since 1970.
        base: How many points there are already.
        half_points: How many points a half takes.

    Attributes:
        start: As given.
        trouble: Why the points do not outlive the process, though there is a path; None if they do.
    """

    def __init__(self, path: Path | None, start: float, base: int = 0, half_points: int = HALF_POINTS) -> None:
        self.trouble: str | None = None
        self._path = path
        self.start = start
        self._half_points = half_points
        self._memory = self._map(2 * _SLOT_BYTES * (1 + half_points))
        self._halves = _halves(self._memory, half_points)
        # Reentrant: a signal's handler may log while its thread is in here.
        self._lock = threading.RLock()
        self._active = self._halves[0]
        self._open(self._active, base)

    def _map(self, size: int) -> mmap.mmap:
        if self._path is None:
            return mmap.mmap(-1, size)
        try:
            memory = mapped(self._path, size)
        except (OSError, ValueError, AttributeError) as error:
            self.trouble = getattr(error, "strerror", None) or str(error)
            return mmap.mmap(-1, size)
        return memory

    def _open(self, half: Half, base: int) -> None:
        half.open(base)
        # At once, for an exception may come between any two statements.
        self._active, self._at, self._end, self._stamp = half, half.at, half.end, half.stamp << STAMP_SHIFT

    def add(self, metric: Metric, step: int | float | None, value: float, now: float) -> bool:
        """Take a point; return False if there is no room, see `swap`.

        Args:
            metric: Its metric, which has a tag.
            step: Its step; None is one above the last.
            value: Its value.
            now: Seconds since 1970.

        Raises:
            struct.error: If the step is no int of 64 bits, or the clock was set back behind the start.
        """
        with self._lock:
            at = self._at
            if at >= self._end:
                return False
            # First: whoever logs from a signal's handler gets another slot.
            self._at = at + _SLOT_BYTES
            tick = int((now - self.start) * TICKS_PER_S)
            last = metric.last
            if step is None:
                step = last + 1
            # A signal's exception may come after a call: it finds the point counted and written, or neither.
            metric.count += 1
            metric.last = step
            try:
                _PACK(self._memory, at, step, value, tick, metric.tag | self._stamp)
            except struct.error:
                metric.count -= 1
                metric.last = last
                raise
        return True

    def add_any(self, metric: Metric, step: int | float | None, value: float | Callable[[], float], now: float) -> bool:
        """Do as `add` does, at any time, with a step of 64 bits or a float, and a value or what fetches it later."""
        with self._lock:
            at = self._at
            if at >= self._end:
                return False
            self._at = at + _SLOT_BYTES
            if step is None:
                step = metric.last + 1
            if isinstance(step, float):
                bits, tag = _BITS.unpack(_FLOAT.pack(step))[0], metric.float_tag | self._stamp
            else:
                bits, tag = step, metric.tag | self._stamp
            tick = min(max(0, int((now - self.start) * TICKS_PER_S)), _MAX_TICK)
            metric.count += 1
            metric.last = step
            if callable(value):
                self._active.later.append((at, bits, value, tick, tag))
            else:
                _PACK(self._memory, at, bits, value, tick, tag)
        return True

    def leftover(self) -> Half | None:
        """Return the half that an earlier `swap` returned, if it was not cleared, because an exception came first."""
        other = self._other()
        return other if other.num_used else None

    def swap(self, base: int) -> Half | None:
        """Return the half that was filled so far, to be moved away and cleared; points go to the other one meanwhile.

        For one caller at a time; None if there are no points.

        Args:
            base: How many points come before them.
        """
        with self._lock:
            half = self._active
            if self._end:
                half.num_used = self._num_taken()
            if not half.num_used:
                return None
            half.set_base(base)
            if self._end:
                # Slots that turn out to be no points make this too great until its turn comes, which does no harm.
                self._open(self._other(), base + half.num_used)
            return half

    def _other(self) -> Half:
        return self._halves[self._active is self._halves[0]]

    def _num_taken(self) -> int:
        return (self._at - self._active.at) // _SLOT_BYTES

    def num_waiting(self) -> Counter[int]:
        """Return how many points are here, by the metric's id."""
        with self._lock:
            num_slots = self._num_taken() if self._end else self._active.num_used
            return Counter(
                number
                for half in self._halves
                for number in half.ids(num_slots if half is self._active else half.num_used)
            )

    @property
    def num_bytes(self) -> int:
        """The room that its file takes, which `remove` gives back; 0 without one."""
        return len(self._memory) if self._path is not None and self.trouble is None else 0

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more points."""
        return self._end == 0

    def close(self) -> None:
        """Take no more points; `swap` still gives those that are here."""
        with self._lock:
            if self._end:
                self._active.num_used = self._num_taken()
                self._at = self._end = 0

    def follow(self, path: Path) -> None:
        """Note that the file was moved to `path`."""
        self._path = path

    def recreate(self, path: Path, base: int) -> Half | None:
        """Make the file anew at `path`; return what has come since the last `swap`, to be moved away, if anything.

        Args:
            path: Where to.
            base: How many points come before those.
        """
        with self._lock:
            half = self._active
            half.num_used = self._num_taken()
            half.set_base(base)
            self._path, self.trouble = path, None
            self._memory = self._map(2 * _SLOT_BYTES * (1 + self._half_points))
            self._halves = _halves(self._memory, self._half_points)
            self._open(self._halves[0], base + half.num_used)
            return half if half.num_used else None

    def remove(self) -> None:
        """Remove the file, once it is closed and nothing is here any more, and give its room back."""
        if self._path is not None and self.trouble is None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        with self._lock:
            # As long as it is mapped, the file takes its room.
            self._memory = mmap.mmap(-1, 2 * 2 * _SLOT_BYTES)
            self._halves = _halves(self._memory, 1)
            self._active = self._halves[0]


def _halves(memory: mmap.mmap, half_points: int) -> list[Half]:
    return [Half(memory, offset, half_points) for offset in (0, _SLOT_BYTES * (1 + half_points))]
