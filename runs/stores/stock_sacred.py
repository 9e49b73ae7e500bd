"""Metrics in the form in which stock Sacred keeps them, in files and in MongoDB alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from observers.record.points.points import Series
from runs.query.times import time_of

__all__ = ["series_of"]


def series_of(entry: Any, start: datetime | None) -> Series | None:
    """Return a metric in Sacred's form, which is a mapping of `steps`, `values` and `timestamps`; None if it is none.

    What is no number becomes NaN.

    Args:
        entry: The metric; each of its parts is a list, or an array of numpy.
        start: When the run started; without it, the times are NaN.
    """
    if not isinstance(entry, Mapping) or not isinstance(entry.get("values"), list | np.ndarray):
        return None
    values = _numbers(entry["values"]).astype(np.float64)
    recorded, stamps = (entry.get(name) for name in ("steps", "timestamps"))
    steps = _numbers(recorded) if isinstance(recorded, list | np.ndarray) and len(recorded) else np.arange(len(values))
    if (np.abs(steps) < 2**63).all() and (steps == np.trunc(steps)).all():
        steps = steps.astype(np.int64, copy=False)
    count = min(len(values), len(steps))
    times = np.full(count, np.nan)
    if isinstance(stamps, list | np.ndarray) and start is not None:
        found = _seconds(stamps[:count], start)
        times[: len(found)] = found
    return Series(steps[:count], values[:count], times)


def _numbers(found: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return numbers as int64 or float64."""
    if isinstance(found, np.ndarray) and found.dtype.kind in "if":
        return found.astype(np.int64 if found.dtype.kind == "i" else np.float64, copy=False)
    return np.array([_number(value) for value in found], np.float64)


def _seconds(stamps: Sequence[Any] | np.ndarray, start: datetime) -> np.ndarray:
    """Return times (n,) as seconds since the start; NaN for what is no time."""
    if isinstance(stamps, np.ndarray) and stamps.dtype.kind == "M":
        return (stamps.astype("M8[us]") - np.datetime64(start, "us")).astype(np.int64) / 1e6
    found = (stamp if isinstance(stamp, datetime) else time_of(stamp) for stamp in list(stamps))
    return np.array([math.nan if at is None else (at - start).total_seconds() for at in found], np.float64)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
