"""Times of a run's record, and the duration, which is computed from them and recorded nowhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from observers.record.identity import is_time, last_beat

__all__ = ["DURATION", "DURATION_FIELDS", "duration_s", "in_utc", "last_sign", "time_of", "time_text", "without_zone"]

DURATION = "duration"
# The fields of a run that `duration_s` asks for.
DURATION_FIELDS = ("start_time", "queue_time", "stop_time", "heartbeat")


def time_of(value: Any) -> datetime | None:
    """Return a time of a record, in UTC without saying so; None for anything that is no time in ISO form."""
    try:
        time = datetime.fromisoformat(value)
        return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)
    except (TypeError, ValueError, OverflowError):
        return None


def in_utc(value: Any) -> datetime | None:
    """Return a time of a record, in UTC; None for anything that is no time in ISO form."""
    time = time_of(value)
    return None if time is None else time.replace(tzinfo=UTC)


def without_zone(time: datetime | None) -> datetime | None:
    """Return a time in UTC as one that does not say so, as records have it."""
    return None if time is None else time.replace(tzinfo=None)


def time_text(value: Any) -> str | None:
    """Return a time as the text by which all stores compare it, which sorts by time; None if it is none."""
    time = _to_the_millisecond(time_of(value))
    return None if time is None else time.isoformat()


def _to_the_millisecond(time: datetime | None) -> datetime | None:
    """Return a time as MongoDB holds it, so that all stores compare the same."""
    return None if time is None else time.replace(microsecond=time.microsecond // 1000 * 1000)


def last_sign(status: Any, lease: Any) -> datetime | None:
    """Return when a run that did not say how it ended was last known to live; None if its record says so itself.

    Args:
        status: As `observers.record.identity.true_status` has it.
        lease: Its lease; anything, as others may have written there.
    """
    beat = last_beat(lease) if isinstance(lease, Mapping) else None
    if status == "DEAD":
        return beat
    if status != "RUNNING":
        return None
    if beat is None or not is_time(lease.get("heartbeat")):
        return datetime.now(UTC).replace(tzinfo=None)
    # Of the wall time only what passed since the heartbeat: the clock may have been set before.
    return beat + timedelta(seconds=max(0.0, time.time() - lease["heartbeat"]))


def duration_s(run: Mapping[str, Any], last: datetime | None = None) -> float | None:
    """Return the seconds from a run's start to its end, or to the last sign of it; None without both in that order.

    Args:
        run: `DURATION_FIELDS` of its record, as text in ISO form; a field may be missing.
        last: What `last_sign` returned of it; by default, its last heartbeat counts.
    """
    start = _to_the_millisecond(time_of(run.get("start_time") or run.get("queue_time")))
    stop = _to_the_millisecond(time_of(run.get("stop_time")) or last or time_of(run.get("heartbeat")))
    return (stop - start).total_seconds() if start is not None and stop is not None and stop >= start else None
