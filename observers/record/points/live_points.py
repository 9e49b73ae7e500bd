"""Points on their way to the journal, in memory that outlives the process.

A point that is logged is packed into `metrics.live`, a small file of the run's folder that is mapped into memory. When
the process is killed, the kernel still has it, and readers find it there. The heartbeat moves what has come to
`metrics.bin`; when the run ends, the file goes.

The file has two halves (see `observers.record.schema`): points go into one while those of the other are appended to
`metrics.bin`. Each half is mapped by itself, because `mmap.write` appends in one step what a thread under the
interpreter's lock has packed: it takes a slot and fills it, or there is no room and it takes none. That needs no lock
of ours, which would cost as much as all the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import mmap
import struct
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from observers.record.points.mapped_file import mapped_halves
from observers.record.points.points import SLOT, STAMP_SHIFT, TICKS_PER_S, points_in

__all__ = ["HALF_POINTS", "MAX_METRICS", "Half", "LivePoints", "Metric"]

_log = logging.getLogger(__name__)

HALF_POINTS = 65_535
_SLOT_BYTES = SLOT.itemsize
_SLOT = struct.Struct("@qdII")
_PACK = _SLOT.pack
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


class _Later(NamedTuple):
    """A point whose value comes later."""

    bits: int
    fetch: Callable[[], float]
    tick: int
    tag: int


class Half:
    """One half of the memory.

    Args:
        memory: What it is written to, up to its end.
        offset: Where the half begins in it.
        num_slots: How many points it takes.

    Attributes:
        memory: As given; points are appended at its position.
        num_used: How many slots are taken, once it is filled; 0 of a clean one.
        later: Points whose value comes later, by the number that stands in the place of the step meanwhile.
    """

    def __init__(self, memory: mmap.mmap, offset: int, num_slots: int) -> None:
        self.memory = memory
        self._offset = offset
        self._at = offset + _SLOT_BYTES
        self._slots = np.frombuffer(memory, SLOT, num_slots, self._at)
        self.num_used = 0
        self.base = 0
        self.stamp = 0
        self.later: dict[int, _Later] = {}

    def set_base(self, base: int) -> None:
        """Say how many points come before its first one."""
        self.base = base
        _BASE(self.memory, self._offset, base)

    def open(self, base: int) -> None:
        """Begin to fill it, which is clean."""
        self.set_base(base)
        self.stamp = self.stamp % 255 + 1
        _BASE(self.memory, self._offset + 8, self.stamp)
        self.memory.seek(self._at)

    def num_taken(self) -> int:
        """Return how many slots are taken by now."""
        return (self.memory.tell() - self._at) // _SLOT_BYTES

    def points(self) -> tuple[np.ndarray, int]:
        """Return its points (n,) in the journal's form, and how many values could not be fetched."""
        num_failed = 0
        slots = self._slots[: self.num_used]
        if self.later:
            waiting = np.flatnonzero(slots["tag"] == 0)
            place = dict(zip(slots["step"][waiting].tolist(), waiting.tolist(), strict=True))
            for number, point in list(self.later.items()):
                try:
                    slot = point.bits, point.fetch(), point.tick, point.tag
                    _SLOT.pack_into(self.memory, self._at + place[number] * _SLOT_BYTES, *slot)
                except Exception as error:
                    num_failed += 1
                    _log.error("a value could not be fetched from its device (%s: %s)", type(error).__name__, error)
                del self.later[number]
        return points_in(slots, self.stamp), num_failed

    def ids(self, num_slots: int) -> list[int]:
        """Return the metric of each point in its first slots, also of those whose value comes later."""
        there = points_in(self._slots[:num_slots], self.stamp)["metric"].tolist()
        return there + [(point.tag & MAX_METRICS) - 1 for point in list(self.later.values())]

    def clear(self) -> None:
        """Make it clean."""
        # A slice of numpy's structures would be filled one by one.
        self.memory[self._at : self._at + self.num_used * _SLOT_BYTES] = bytes(self.num_used * _SLOT_BYTES)
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
        is_closed: Whether it takes no more points.
    """

    def __init__(self, path: Path | None, start: float, base: int = 0, half_points: int = HALF_POINTS) -> None:
        self.trouble: str | None = None
        self.is_closed = False
        self._path = path
        self.start = start
        self._half_points = half_points
        # Reentrant: a signal's handler may log while its thread is in here.
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._halves = self._map()
        self._open(self._halves[0], base)

    def _map(self) -> tuple[Half, Half]:
        half_bytes = _SLOT_BYTES * (1 + self._half_points)
        first = second = None
        if self._path is not None:
            try:
                first, second = mapped_halves(self._path, half_bytes)
            except (OSError, ValueError, AttributeError) as error:
                self.trouble = getattr(error, "strerror", None) or str(error)
        if first is None or second is None:
            first, second = mmap.mmap(-1, half_bytes), mmap.mmap(-1, 2 * half_bytes)
        return Half(first, 0, self._half_points), Half(second, half_bytes, self._half_points)

    def _open(self, half: Half, base: int) -> None:
        half.open(base)
        stamp = half.stamp << STAMP_SHIFT
        write: Callable[[bytes], int] = half.memory.write
        # At once: threads and signals come in at calls, and there is none in between.
        self._active, self._stamp, self._write = half, stamp, write

    def add(self, metric: Metric, step: int | float | None, value: float, now: float) -> bool:
        """Take a point; return False if there is no room, see `swap`.

        The statements between two calls are one to other threads and to signals, under the interpreter's lock: without
        that lock, call `add_any`.

        Args:
            metric: Its metric, which has a tag.
            step: Its step; None is one above the last.
            value: Its value.
            now: Seconds since 1970.

        Raises:
            struct.error: If the step is no int of 64 bits, or the clock was set back behind the start.
        """
        tick = int((now - self.start) * TICKS_PER_S)
        before = metric.last
        if step is None:
            step = before + 1
        metric.last = step
        try:
            data, stamp = b"", -1
            while stamp != self._stamp:  # as long as the heartbeat opens the other half meanwhile
                stamp = self._stamp
                data = _PACK(step, value, tick, metric.tag | stamp)
        except BaseException:
            metric.last = before
            raise
        # Counted and written, or neither, whatever exception a signal raises.
        metric.count += 1
        try:
            self._write(data)
        except ValueError:
            metric.count -= 1
            if metric.last == step:
                metric.last = before
            return False
        return True

    def add_any(self, metric: Metric, step: int | float | None, value: float | Callable[[], float], now: float) -> bool:
        """Do as `add` does, at any time, with a step of 64 bits or a float, and a value or what fetches it later."""
        with self._lock:
            if step is None:
                step = metric.last + 1
            if isinstance(step, float):
                bits, tag = _BITS.unpack(_FLOAT.pack(step))[0], metric.float_tag | self._stamp
            else:
                bits, tag = step, metric.tag | self._stamp
            tick = min(max(0, int((now - self.start) * TICKS_PER_S)), _MAX_TICK)
            number = -1
            if callable(value):
                number, later = next(self._numbers), self._active.later
                later[number] = _Later(bits, value, tick, tag)
                data = _PACK(number, 0.0, 0, 0)
            else:
                data = _PACK(bits, value, tick, tag)
            before = metric.last
            metric.count += 1
            metric.last = step
            try:
                self._write(data)
            except ValueError:
                metric.count -= 1
                metric.last = before
                self._active.later.pop(number, None)
                return False
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
            if self.is_closed:
                if half.num_used:
                    half.set_base(base)
                return half if half.num_used else None
            if not half.num_taken():
                return None
            half.set_base(base)
            # Points that other threads add up to the moment when the other half takes them are counted behind it.
            other = self._other()
            self._open(other, base + half.num_taken())
            half.num_used = half.num_taken()
            if other.base != base + half.num_used:
                other.set_base(base + half.num_used)
            return half

    def _other(self) -> Half:
        return self._halves[self._active is self._halves[0]]

    def num_waiting(self) -> Counter[int]:
        """Return how many points are here, by the metric's id."""
        with self._lock:
            num_taken = self._active.num_used if self.is_closed else self._active.num_taken()
            return Counter(
                number
                for half in self._halves
                for number in half.ids(num_taken if half is self._active else half.num_used)
            )

    @property
    def num_bytes(self) -> int:
        """The room that its file takes, which `remove` gives back; 0 without one."""
        return 2 * _SLOT_BYTES * (1 + self._half_points) if self._path is not None and self.trouble is None else 0

    def close(self) -> None:
        """Take no more points; `swap` still gives those that are here."""
        with self._lock:
            if not self.is_closed:
                self.is_closed, self._write = True, _refuse
                self._active.num_used = self._active.num_taken()

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
            half.set_base(base)
            self._path, self.trouble = path, None
            self._halves = self._map()
            self._open(self._halves[0], base + half.num_taken())
            half.num_used = half.num_taken()
            self._active.set_base(base + half.num_used)
            return half if half.num_used else None

    def remove(self) -> None:
        """Remove the file, once it is closed and nothing is here any more, and give its room back."""
        if self._path is not None and self.trouble is None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        with self._lock:
            # As long as it is mapped, the file takes its room.
            self._halves = _no_halves()
            self._active = self._halves[0]


def _no_halves() -> tuple[Half, Half]:
    return Half(mmap.mmap(-1, 2 * _SLOT_BYTES), 0, 1), Half(mmap.mmap(-1, 2 * _SLOT_BYTES), 0, 1)


def _refuse(data: bytes) -> NoReturn:
    """Take the place of `mmap.write` once no more points are taken."""
    raise ValueError
