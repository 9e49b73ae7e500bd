"""The latest points of a run, in memory that outlives the process.

A point is packed into `metrics.live` when it is logged: a small file in the run's folder that is mapped into memory.
If the process is killed, the kernel still has it, and readers find it there. The heartbeat moves new points to
`metrics.bin`, and the end of the run removes the file.

The file has two halves (see `sacristan.observers.record.schema`): new points go into one while the points of the other
are appended to `metrics.bin`. Points are added without a lock, which would cost as much as everything else: under the
interpreter's lock, other threads and signals come in after a call, and there is none from the look at the next free
slot to `pack_into`, which fills it. It packs field by field, the tag last, so that a killed process leaves a slot
either whole or without a tag, which readers skip. (`memcpy`, as in `mmap.write`, has no such order.)
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import mmap
import os
import struct
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sacristan.observers.record.points import SLOT_BYTES, STAMP_SHIFT, TICKS_PER_S, Metric, packed

_log = logging.getLogger(__name__)

HALF_POINTS = 65_535
_FIELDS = "qdII"
_SLOT, _POINT = struct.Struct(f"@{_FIELDS}"), struct.Struct("<IIqd")
_PACK_INTO = _SLOT.pack_into
_BASE = struct.Struct("@Q").pack_into
_BITS, _FLOAT = struct.Struct("@q"), struct.Struct("@d")

MAX_METRICS = 2**STAMP_SHIFT - 1
_MAX_TICK = 2**32 - 1

# File systems where an allocated page can be written at any time. On those that write a changed page elsewhere (btrfs,
# ZFS), or that a server can take away, a full disk or a lost server would end the process by SIGBUS.
_SAFE_FILE_SYSTEMS = frozenset(("ext2", "ext3", "ext4", "xfs", "tmpfs", "overlay"))
_MOUNTS = Path("/proc/self/mountinfo")


class _Later(NamedTuple):
    """A point whose value is fetched later."""

    bits: int
    fetch: Callable[[], float]
    tick: int
    tag: int


class Row:
    """Metrics that are logged together again and again; a point of each is packed by one call.

    Attributes:
        metrics: The metrics, each with an id for points whose steps are ints.
        count: How many points each of them got as part of this row; their own `count` has the others.
    """

    __slots__ = ("_stamp", "_tags", "count", "metrics", "num_bytes", "pack_into")

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics = tuple(metrics)
        self.count = 0
        self.num_bytes = len(self.metrics) * SLOT_BYTES
        self.pack_into = struct.Struct("@" + _FIELDS * len(self.metrics)).pack_into
        # For the stamp that was asked for last: the tags of the slots.
        self._stamp = 0
        self._tags: list[int] = []

    def slots(self, stamp: int, step: int, values: Collection[float], tick: int) -> list[Any]:
        """Return the fields of all slots, one after the other."""
        known, tags = self._stamp, self._tags
        if known != stamp:
            tags = [metric.tag | stamp for metric in self.metrics]
            self._stamp, self._tags = stamp, tags
        slots: list[Any] = [step, 0.0, tick, 0] * len(tags)
        slots[1::4], slots[3::4] = values, tags
        return slots


class Half:
    """One half of the memory.

    Attributes:
        memory: The memory, which ends with the half; the half begins at `offset`.
        at, end: Where the next point goes, and where the half's room ends.
        stamp: What the tags of its points have in their upper bits.
        num_used: How many slots are taken, once the half is full or closed; 0 if it is clean.
        later: Points whose value is fetched later, by the number that their slot holds as its step until then.
    """

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self.memory = memory
        self._offset = offset
        self.at = self._first = offset + SLOT_BYTES
        self.end = len(memory)
        self.num_used = self.base = self.stamp = 0
        self.later: dict[int, _Later] = {}

    def set_base(self, base: int) -> None:
        """Store the number of points before the half's first one.

        They are in `metrics.bin`, and in the other half if that is older.
        """
        self.base = base
        _BASE(self.memory, self._offset, base)

    def open(self, base: int) -> None:
        """Start to fill the half, which is clean."""
        self.set_base(base)
        number = (self.stamp >> STAMP_SHIFT) % 255 + 1
        self.stamp = number << STAMP_SHIFT
        _BASE(self.memory, self._offset + 8, number)
        self.at = self._first

    def num_taken(self) -> int:
        """Return the number of slots taken so far."""
        return (self.at - self._first) // SLOT_BYTES

    def points(self) -> tuple[bytes, int]:
        """Return the half's points, packed, and the number of values that could not be fetched."""
        num_failed = 0
        if self.later:
            slots = _SLOT.iter_unpack(self._slots(self.num_used))
            slot_of = {step: number for number, (step, _, _, tag) in enumerate(slots) if tag == 0}
            for number, point in list(self.later.items()):
                try:
                    slot = point.bits, point.fetch(), point.tick, point.tag
                    _PACK_INTO(self.memory, self._first + slot_of[number] * SLOT_BYTES, *slot)
                except Exception as error:
                    num_failed += 1
                    _log.error("a value could not be fetched from its device (%s: %s)", type(error).__name__, error)
                del self.later[number]
        return packed(self._slots(self.num_used), self.stamp >> STAMP_SHIFT), num_failed

    def ids(self, num_slots: int) -> list[int]:
        """Return the metric id of each point in the first slots, including points whose value is fetched later."""
        points = packed(self._slots(num_slots), self.stamp >> STAMP_SHIFT)
        there = [number for number, *_ in _POINT.iter_unpack(points)]
        return there + [(point.tag & MAX_METRICS) - 1 for point in list(self.later.values())]

    def _slots(self, num_slots: int) -> bytes:
        return self.memory[self._first : self._first + num_slots * SLOT_BYTES]

    def clear(self) -> None:
        """Clear all slots, after their points have been moved."""
        self.memory[self._first : self._first + self.num_used * SLOT_BYTES] = bytes(self.num_used * SLOT_BYTES)
        self.num_used = 0


class LivePoints:
    """Takes points from any thread, in well under a microsecond, of a run that began at `start` (seconds since 1970).

    Without a `path`, or if it cannot be mapped for the reason `trouble`, the memory is lost with the process.
    """

    def __init__(self, path: Path | None, start: float, base: int = 0, half_points: int = HALF_POINTS) -> None:
        self.trouble: str | None = None
        self.is_closed = False
        self._path = path
        self.start = start
        self._half_points = half_points
        # Reentrant: a signal handler may log while its thread is in here.
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._halves = self._map()
        self._active = self._halves[0]
        self._active.open(base)

    def _map(self) -> tuple[Half, Half]:
        half_bytes = SLOT_BYTES * (1 + self._half_points)
        memories = None
        if self._path is not None:
            try:
                memories = _mapped_halves(self._path, half_bytes)
            except (OSError, ValueError, AttributeError) as error:
                self.trouble = getattr(error, "strerror", None) or str(error)
        first, second = memories or (mmap.mmap(-1, half_bytes), mmap.mmap(-1, 2 * half_bytes))
        return Half(first, 0), Half(second, half_bytes)

    def add(self, metric: Metric, step: int | float | None, value: float, now: float) -> bool:
        """Take a point whose value is a float, an int or a bool.

        A `step` of None is one above the metric's last. False means that there is no room: `swap`, and call again.
        Raises struct.error if the step is not an int of 64 bits, or the clock was set back to before the start.

        Without the interpreter's lock, call `add_any`.
        """
        tick = int((now - self.start) * TICKS_PER_S)
        # No call from here to `pack_into`. An exception that a signal raises comes after it, when the point is there.
        half, before = self._active, metric.last
        at = half.at
        if at == half.end:
            return False
        if step is None:
            step = before + 1
        half.at, metric.last = at + SLOT_BYTES, step
        metric.count += 1
        try:
            _PACK_INTO(half.memory, at, step, value, tick, metric.tag | half.stamp)
        except struct.error:
            half.at, metric.last = at, before
            metric.count -= 1
            raise
        return True

    def add_row(self, row: Row, step: int, values: Collection[float], now: float) -> bool:
        """Take a point of each metric of a row, or none; see `add`. The step is an int of 64 bits.

        False means that they do not fit, or that the clock was set back to before the start: add them one by one.
        """
        tick = int((now - self.start) * TICKS_PER_S)
        while True:
            half = self._active
            at, stamp = half.at, half.stamp
            if at + row.num_bytes > half.end or not 0 <= tick <= _MAX_TICK:
                return False
            for metric in row.metrics:
                metric.last = step
            arguments = (half.memory, at, *row.slots(stamp, step, values, tick))
            # Others may have come in up to here. From here on there is no call, nor memory taken for a container, for
            # which Python may collect garbage first.
            if half is self._active and half.at == at and half.stamp == stamp:
                half.at = at + row.num_bytes
                row.count += 1
                row.pack_into(*arguments)
                return True

    def add_any(self, metric: Metric, step: int | float | None, value: float | Callable[[], float], now: float) -> bool:
        """Take a point as `add` does, under a lock, with any kind of step and value.

        `value` may be a function, which the next heartbeat calls to fetch it. The metric needs a `float_tag` if the
        step is a float. Times before the start count as the start.
        """
        with self._lock:
            half, before = self._active, metric.last
            if step is None:
                step = before + 1
            if isinstance(step, float):
                bits, tag = _BITS.unpack(_FLOAT.pack(step))[0], metric.float_tag | half.stamp
            else:
                bits, tag = step, metric.tag | half.stamp
            tick = min(max(0, int((now - self.start) * TICKS_PER_S)), _MAX_TICK)
            number = -1
            if callable(value):
                number = next(self._numbers)
                half.later[number] = _Later(bits, value, tick, tag)
                bits, value, tick, tag = number, 0.0, 0, 0
            # No call from here to `pack_into`, as in `add`.
            at = half.at
            if at == half.end:
                half.later.pop(number, None)
                return False
            half.at, metric.last = at + SLOT_BYTES, step
            metric.count += 1
            try:
                _PACK_INTO(half.memory, at, bits, value, tick, tag)
            except struct.error:
                half.at, metric.last = at, before
                metric.count -= 1
                raise
        return True

    def leftover(self) -> Half | None:
        """Return the half of an earlier `swap` that was not cleared because an exception came first, if any."""
        other = self._other()
        return other if other.num_used else None

    def swap(self, base: int) -> Half | None:
        """Open the other half; return the filled one, whose points are to be moved and cleared, or None if it has none.

        One caller at a time.
        """
        with self._lock:
            half = self._active
            if self.is_closed:
                half.set_base(base)
                return half if half.num_used else None
            if not half.num_taken():
                return None
            half.set_base(base)
            # Points that other threads add before the other half takes them are counted afterwards.
            other = self._other()
            other.open(base + half.num_taken())
            self._active = other
            half.num_used = half.num_taken()
            if other.base != base + half.num_used:
                other.set_base(base + half.num_used)
            return half

    def _other(self) -> Half:
        return self._halves[self._active is self._halves[0]]

    def num_waiting(self) -> Counter[int]:
        """Return the number of points that have not been moved, by metric id."""
        with self._lock:
            num_taken = self._active.num_used if self.is_closed else self._active.num_taken()
            return Counter(
                number
                for half in self._halves
                for number in half.ids(num_taken if half is self._active else half.num_used)
            )

    @property
    def num_bytes(self) -> int:
        """Size of the file, which `remove` frees; 0 without a file."""
        return 2 * SLOT_BYTES * (1 + self._half_points) if self._path is not None and self.trouble is None else 0

    def close(self) -> None:
        """Reject points from now on; `swap` still returns those that are here."""
        with self._lock:
            if not self.is_closed:
                self.is_closed, half = True, self._active
                half.end = half.at
                half.num_used = half.num_taken()

    def follow(self, path: Path) -> None:
        """Remember the file's new place after it was moved."""
        self._path = path

    def recreate(self, path: Path, base: int) -> Half | None:
        """Create the file again, after its folder was deleted; return the half to be moved, if it has points.

        That half has the points since the last `swap`; `base` others come before it.
        """
        with self._lock:
            half = self._active
            half.set_base(base)
            self._path, self.trouble = path, None
            self._halves = self._map()
            self._halves[0].open(base + half.num_taken())
            self._active = self._halves[0]
            half.num_used = half.num_taken()
            self._active.set_base(base + half.num_used)
            return half if half.num_used else None

    def remove(self) -> None:
        """Remove the file and free its room, after it was closed and all its points were moved."""
        if self._path is not None and self.trouble is None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        with self._lock:
            # The file keeps its room while it is mapped.
            self._halves = Half(_no_memory(), 0), Half(_no_memory(), 0)
            self._active = self._halves[0]


def _no_memory() -> mmap.mmap:
    """Return memory that has room for no point."""
    return mmap.mmap(-1, SLOT_BYTES)


def _mapped_halves(path: Path, half_bytes: int) -> tuple[mmap.mmap, mmap.mmap]:
    """Return a new, fully allocated file as memory: its first half, and all of it.

    Raises OSError or ValueError if that is impossible, and AttributeError if the system cannot allocate files.
    """
    kind = _file_system(path.parent)
    if kind not in _SAFE_FILE_SYSTEMS:
        raise OSError(None, f"the file system {kind} is not known to keep what is mapped")
    # A process that has an old file mapped keeps it.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.posix_fallocate(descriptor, 0, 2 * half_bytes)
        return mmap.mmap(descriptor, half_bytes), mmap.mmap(descriptor, 2 * half_bytes)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _file_system(folder: Path) -> str:
    """Return the kind of file system that a folder is on."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _MOUNTS.read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == wanted:
            return rest.split()[0]
    return "unknown"
