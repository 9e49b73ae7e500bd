"""The clock of a run: the wall time of its start plus the seconds that have really passed.

Setting the system's clock while a run is active changes neither its duration nor the times of its points. A process has
one run at a time, and so one such clock. Leases contain the wall time, which other machines compare with theirs, and
the time of the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

# On Linux, this includes the time that the machine sleeps.
_ticks: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
_began = _ticks()
_offset = time.time() - _began


def start() -> None:
    """Set the clock to the wall time, when a run starts."""
    global _began, _offset
    _began = _ticks()
    _offset = time.time() - _began


def keep_above(seconds: float) -> None:
    """Set the clock to at least `seconds` since 1970, when a run is resumed."""
    global _offset
    _offset = max(_offset, seconds - _ticks())


def now() -> float:
    """Return the time of the run, in seconds since 1970."""
    return _offset + _ticks()


def utc_now() -> datetime:
    """Return the time of the run, in UTC without a time zone, as in records."""
    return datetime.fromtimestamp(now(), UTC).replace(tzinfo=None)


def elapsed_s() -> float:
    """Return the seconds since `start`."""
    return _ticks() - _began
