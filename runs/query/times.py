"""Times of a run's record, and the duration, which is computed from them and recorded nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = ["DURATION", "DURATION_FIELDS", "duration_s", "time_of", "time_text"]

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


def time_text(value: Any) -> str | None:
    """Return a time as the text by which all stores compare it, which sorts by time; None if it is none."""
    time = _to_the_millisecond(time_of(value))
    return None if time is None else time.isoformat()


def _to_the_millisecond(time: datetime | None) -> datetime | None:
    """Return a time as MongoDB holds it, so that all stores compare the same."""
    return None if time is None else time.replace(microsecond=time.microsecond // 1000 * 1000)


def duration_s(run: Mapping[str, Any]) -> float | None:
    """Return the seconds from a run's start to its end, or to its last heartbeat; None if it has not both.

    Args:
        run: `DURATION_FIELDS` of its record, as text in ISO form; a field may be missing.
    """
    start = _to_the_millisecond(time_of(run.get("start_time") or run.get("queue_time")))
    stop = _to_the_millisecond(time_of(run.get("stop_time")) or time_of(run.get("heartbeat")))
    return (stop - start).total_seconds() if start is not None and stop is not None else None
