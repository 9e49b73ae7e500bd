"""The latest points of a run, in memory that outlives the process.

A point is packed into `metrics.live` when it is logged: a small file in the run's folder that is mapped into memory.
If the process is killed, the kernel still has it, and readers find it there. The heartbeat moves new points to
`metrics.bin`, and the end of the run removes the file.

The file has two halves (see `sacristan.observers.record.schema`): new points go into one while the points of the other
are appended to `metrics.bin`. Each half is mapped separately, because `mmap.write` appends in one step, under the
interpreter's lock, what a thread has packed: it takes a slot and fills it, or there is no room and it takes none. This
needs no lock of its own, which would cost as much as everything else.
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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from sacristan.observers.record.points.points import SLOT_BYTES, STAMP_SHIFT, TICKS_PER_S, Metric, packed

__all__ = ["HALF_POINTS", "MAX_METRICS", "Half", "LivePoints"]

_log = logging.getLogger(__name__)

HALF_POINTS = 65_535
_SLOT, _POINT = struct.Struct("@qdII"), struct.Struct("<IIqd")
_PACK = _SLOT.pack
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


class Half:
    """One half of the memory.

    Attributes:
        memory: Points are appended at its position, up to its end.
        num_used: How many slots are taken, once the half is full or closed; 0 if it is clean.
        later: Points whose value is fetched later, by the number that their slot holds as its step until then.
    """

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self.memory = memory
        self._offset = offset
        self._at = offset + SLOT_BYTES
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
        self.stamp = self.stamp % 255 + 1
        _BASE(self.memory, self._offset + 8, self.stamp)
        self.memory.seek(self._at)

    def num_taken(self) -> int:
        """Return the number of slots taken so far."""
        return (self.memory.tell() - self._at) // SLOT_BYTES

    def points(self) -> tuple[bytes, int]:
        """Return the half's points, packed, and the number of values that could not be fetched."""
        num_failed = 0
        if self.later:
            slots = _SLOT.iter_unpack(self._slots(self.num_used))
            slot_of = {step: number for number, (step, _, _, tag) in enumerate(slots) if tag == 0}
            for number, point in list(self.later.items()):
                try:
                    slot = point.bits, point.fetch(), point.tick, point.tag
                    _SLOT.pack_into(self.memory, self._at + slot_of[number] * SLOT_BYTES, *slot)
                except Exception as error:
                    num_failed += 1
                    _log.error("a value could not be fetched from its device (%s: %s)", type(error).__name__, error)
                del self.later[number]
        return packed(self._slots(self.num_used), self.stamp), num_failed

    def ids(self, num_slots: int) -> list[int]:
        """Return the metric id of each point in the first slots, including points whose value is fetched later."""
        there = [number for number, *_ in _POINT.iter_unpack(packed(self._slots(num_slots), self.stamp))]
        return there + [(point.tag & MAX_METRICS) - 1 for point in list(self.later.values())]

    def _slots(self, num_slots: int) -> bytes:
        return self.memory[self._at : self._at + num_slots * SLOT_BYTES]

    def clear(self) -> None:
        """Clear all slots, after their points have been moved."""
        self.memory[self._at : self._at + self.num_used * SLOT_BYTES] = bytes(self.num_used * SLOT_BYTES)
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
        self._open(self._halves[0], base)

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

    def _open(self, half: Half, base: int) -> None:
        half.open(base)
        stamp = half.stamp << STAMP_SHIFT
        write: Callable[[bytes], int] = half.memory.write
        # In one step: other threads and signals only come in at calls, and there is none in between.
        self._active, self._stamp, self._write = half, stamp, write

    def add(self, metric: Metric, step: int | float | None, value: float, now: float) -> bool:
        """Take a point.

        A `step` of None is one above the metric's last. False means that there is no room: `swap`, and call again.
        Raises struct.error if the step is not an int of 64 bits, or the clock was set back to before the start.

        Under the interpreter's lock, the statements between two calls are one step for other threads and signals.
        Without that lock, call `add_any`.
        """
        tick = int((now - self.start) * TICKS_PER_S)
        before = metric.last
        if step is None:
            step = before + 1
        metric.last = step
        try:
            data, stamp = b"", -1
            while stamp != self._stamp:  # repeat if the heartbeat opens the other half in the meantime
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
        """Take a point as `add` does, under a lock, with any kind of step and value.

        `value` may be a function, which the next heartbeat calls to fetch it. The metric needs a `float_tag` if the
        step is a float. Times before the start count as the start.
        """
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
                number = next(self._numbers)
                self._active.later[number] = _Later(bits, value, tick, tag)
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
            self._open(other, base + half.num_taken())
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
                self.is_closed, self._write = True, _refuse
                self._active.num_used = self._active.num_taken()

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
            self._open(self._halves[0], base + half.num_taken())
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
    return mmap.mmap(-1, 2 * SLOT_BYTES)


def _refuse(data: bytes) -> NoReturn:
    """Stand in for `mmap.write` once the points are closed."""
    raise ValueError


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
