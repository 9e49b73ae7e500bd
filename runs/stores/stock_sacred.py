"""Metrics in the form in which stock Sacred keeps them, in files and in MongoDB alike."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np

from observers.record.points import Series
from runs.query.times import time_of

__all__ = ["series_of"]


def series_of(entry: Any, start: datetime | None) -> Series | None:
    """Return a metric in Sacred's form, which is a mapping of `steps`, `values` and `timestamps`; None if it is none.

    What is no number becomes NaN.
    """
    if not isinstance(entry, Mapping) or not isinstance(entry.get("values"), list):
        return None
    values = np.array([_number(value) for value in entry["values"]], np.float64)
    recorded, stamps = (entry.get(name) for name in ("steps", "timestamps"))
    steps = [_number(step) for step in (recorded if isinstance(recorded, list) and recorded else range(len(values)))]
    count = min(len(values), len(steps))
    whole = all(step.is_integer() for step in steps)
    times = np.full(count, np.nan)
    for position, stamp in enumerate(stamps[:count] if isinstance(stamps, list) else ()):
        at = stamp if isinstance(stamp, datetime) else time_of(stamp)
        if at is not None and start is not None:
            times[position] = (at - start).total_seconds()
    return Series(np.array(steps[:count], np.int64 if whole else np.float64), values[:count], times)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
