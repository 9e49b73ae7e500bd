"""The clock of a run: the wall time of its start, and from there the seconds that really pass.

A clock that is set while a run goes on, by hand or over the network, changes neither its duration nor the times of its
points. A process has one run at a time, and so one such clock. Leases keep the wall time, which other machines compare
with theirs, and tell the time of the run beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

__all__ = ["elapsed_s", "keep_above", "now", "start", "utc_now"]

# On Linux the time in which the machine sleeps counts, too.
_ticks: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
_began = _ticks()
_offset = time.time() - _began


def start() -> None:
    """Set the clock by the wall time: a run starts now."""
    global _began, _offset
    _began = _ticks()
    _offset = time.time() - _began


def keep_above(seconds: float) -> None:
    """Set the clock forward to a time, in seconds since 1970, unless it is later already: a run is resumed there."""
    global _offset
    _offset = max(_offset, seconds - _ticks())


def now() -> float:
    """Return the time of the run, in seconds since 1970."""
    return _offset + _ticks()


def utc_now() -> datetime:
    """Return the time of the run, in UTC without a time zone, as records have it."""
    return datetime.fromtimestamp(now(), UTC).replace(tzinfo=None)


def elapsed_s() -> float:
    """Return the seconds since `start`."""
    return _ticks() - _began
