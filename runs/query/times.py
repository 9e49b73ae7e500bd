"""Times of a run's record, in UTC without a zone, and the duration, which is computed from them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sacristan.observers.record.identity import is_time, last_beat

__all__ = [
    "DURATION",
    "DURATION_FIELDS",
    "duration_s",
    "in_utc",
    "last_sign",
    "seconds_of",
    "time_of",
    "time_text",
    "to_the_millisecond",
    "without_zone",
]

DURATION = "duration"
# The fields that `duration_s` reads.
DURATION_FIELDS = ("start_time", "queue_time", "stop_time", "heartbeat")

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration as people write it, such as `90m`, `2h15m` or `1d 12h`; None if it is none."""
    compact = text.replace(" ", "")
    if not compact or _PART.sub("", compact):
        return None
    return sum(float(count) * _UNITS_S[unit] for count, unit in _PART.findall(compact))


def time_of(value: Any) -> datetime | None:
    """Return a recorded time as a naive datetime in UTC; None for anything but a text in ISO 8601."""
    try:
        time = datetime.fromisoformat(value)
        return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)
    except (TypeError, ValueError, OverflowError):
        return None


def in_utc(value: Any) -> datetime | None:
    """Return a recorded time as an aware datetime in UTC; None if it is no time."""
    time = time_of(value)
    return None if time is None else time.replace(tzinfo=UTC)


def without_zone(time: datetime | None) -> datetime | None:
    """Return an aware time in UTC as the naive one that records hold; None stays None."""
    return None if time is None else time.replace(tzinfo=None)


def time_text(value: Any) -> str | None:
    """Return a time as the text by which every store compares it: ISO 8601 in UTC to the millisecond.

    The texts sort by time. None if the value is no time.
    """
    time = to_the_millisecond(time_of(value))
    return None if time is None else time.isoformat()


def to_the_millisecond(time: datetime | None) -> datetime | None:
    """Return a time with MongoDB's precision, which every store compares by."""
    return None if time is None else time.replace(microsecond=time.microsecond // 1000 * 1000)


def last_sign(status: Any, lease: Any) -> datetime | None:
    """Return when a run without a recorded end was last known to be alive.

    That is the last heartbeat of a dead run, the present of a running one, None for any other status.
    """
    beat = last_beat(lease) if isinstance(lease, Mapping) else None
    if status == "DEAD":
        return beat
    if status != "RUNNING":
        return None
    if beat is None or not is_time(lease.get("heartbeat")):
        return datetime.now(UTC).replace(tzinfo=None)
    # Wall time counts only since the heartbeat: the clock may have been set before it.
    return beat + timedelta(seconds=max(0.0, time.time() - lease["heartbeat"]))


def duration_s(run: Mapping[str, Any], last: datetime | None = None) -> float | None:
    """Return how long a run took, in seconds.

    It lasted from the start, or else the queue time, to the end, or else `last` or the heartbeat. None if one is
    missing or they are out of order.
    """
    start = to_the_millisecond(time_of(run.get("start_time") or run.get("queue_time")))
    stop = to_the_millisecond(time_of(run.get("stop_time")) or last or time_of(run.get("heartbeat")))
    return (stop - start).total_seconds() if start is not None and stop is not None and stop >= start else None
