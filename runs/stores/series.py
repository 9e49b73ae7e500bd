"""Points that a record holds in other forms: metrics of stock Sacred, with values of any type, and epochs of steps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeGuard

import numpy as np

from sacristan.observers.record.points import TICKS_PER_S, Series
from sacristan.runs.query import time_of


def series_of(entry: Any, start: datetime | None) -> Series | None:
    """Return the points of a metric in Sacred's form that are numbers or missing; None if the entry is no metric.

    A foreign record may hold anything. `start` has no zone; without it, the times are NaN.
    """
    if not isinstance(entry, Mapping) or not _is_array(entry.get("values")):
        return None
    is_number = _are_numbers(entry["values"])
    series = _all_of(entry, start)
    if is_number.all():
        return series
    kept = is_number[: len(series)]
    return Series(series.steps[kept], series.values[kept], series.times[kept])


def other_values(metrics: Mapping[str, Any], start: datetime | None) -> bytes:
    """Return the values that are not numbers, as lines of JSON in the form of `VALUES` of the schema."""
    return b"".join(
        json.dumps({"name": name, **row}, default=str).encode() + b"\n"
        for name, entry in metrics.items()
        if isinstance(entry, Mapping) and _is_array(entry.get("values"))
        for row in _other_rows(entry, start)
    )


def _other_rows(entry: Mapping[str, Any], start: datetime | None) -> Iterator[dict[str, Any]]:
    is_number = _are_numbers(entry["values"])
    if is_number.all():
        return
    series = _all_of(entry, start)
    ticks = np.rint(np.nan_to_num(series.times) * TICKS_PER_S).astype(np.int64)
    for place in np.flatnonzero(~is_number[: len(series)]).tolist():
        step, after = series.steps[place].item(), int(is_number[:place].sum())
        yield {"step": step, "time": int(ticks[place]), "value": _as_python(entry["values"][place]), "after": after}


def _as_python(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _are_numbers(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        return np.full(len(values), values.dtype.kind in "iuf")
    return np.fromiter(map(_is_number, values), bool, len(values))


def _is_number(value: Any) -> bool:
    """Tell whether a value is missing or a number that fits a float."""
    if isinstance(value, int):
        return abs(value) < 2**1023
    return value is None or isinstance(value, float | np.integer | np.floating)


def _all_of(entry: Mapping[str, Any], start: datetime | None) -> Series:
    """Return all points, with NaN for values that are not numbers."""
    values = _numbers(entry["values"]).astype(np.float64)
    recorded, stamps = entry.get("steps"), entry.get("timestamps")
    steps = _steps(recorded) if _is_array(recorded) and len(recorded) else np.arange(len(values))
    count = min(len(values), len(steps))
    times = np.full(count, np.nan)
    if _is_array(stamps) and start is not None:
        seconds = _seconds(stamps[:count], start)
        times[: len(seconds)] = seconds
    return Series(steps[:count], values[:count], times)


def _is_array(value: Any) -> TypeGuard[list[Any] | np.ndarray]:
    return isinstance(value, list | np.ndarray)


def _steps(recorded: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return steps as int64 if they are whole numbers, else as float64."""
    steps = _numbers(recorded)
    is_whole = (np.abs(steps) < 2**63).all() and (steps == np.trunc(steps)).all()
    return steps.astype(np.int64, copy=False) if is_whole else steps


def _numbers(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return numbers as int64 or float64."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "if":
        return values.astype(np.int64 if values.dtype.kind == "i" else np.float64, copy=False)
    return np.array([_number(value) for value in values], np.float64)


def _seconds(stamps: Sequence[Any] | np.ndarray, start: datetime) -> np.ndarray:
    """Return times (n,) as seconds since the start, NaN for values that are not times."""
    if isinstance(stamps, np.ndarray) and stamps.dtype.kind == "M":
        return (stamps.astype("M8[us]") - np.datetime64(start, "us")).astype(np.int64) / 1e6
    times = (stamp if isinstance(stamp, datetime) else time_of(stamp) for stamp in list(stamps))
    return np.array([math.nan if at is None else (at - start).total_seconds() for at in times], np.float64)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def epochs_at(
    series: Callable[[str], Series | None], field: Callable[[str], object], steps: np.ndarray
) -> np.ndarray | None:
    """Return the epoch, with its fraction, at each of (n,) steps; None if the record does not tell.

    A metric `epoch`, as Lightning logs it, is interpolated linearly, and continued beyond its ends with its mean slope.
    Without one, epochs are derived from the validations, which run every `training.val_interval` epochs. `series` and
    `field` return None for what the run lacks.
    """
    epochs = series("epoch")
    if epochs is not None:
        return _interpolated(epochs, steps)
    interval, monitor = field("config.training.val_interval"), field("config.training.monitor")
    if not isinstance(interval, int) or interval < 1:
        return None
    names = [monitor] if isinstance(monitor, str) and monitor.startswith("val/") else []
    validations = next((found for name in [*names, "val/loss"] if (found := series(name)) is not None), None)
    if validations is None:
        return None
    return _counted(validations, interval, steps, is_continued=bool(field("parent")))


def _counted(validations: Series, interval: int, steps: np.ndarray, *, is_continued: bool) -> np.ndarray | None:
    # A run that was started from another continues its steps.
    at = np.unique(validations.steps)
    at = np.diff(at) if is_continued else at
    return None if not len(at) or not at[0] > 0 else np.asarray(steps, float) * interval / float(at[0])


def _interpolated(epochs: Series, steps: np.ndarray) -> np.ndarray | None:
    positions = np.flatnonzero(np.isfinite(epochs.values) & np.isfinite(epochs.steps))
    if not len(positions):
        return None
    order = positions[np.argsort(epochs.steps[positions], kind="stable")]
    at, values = epochs.steps[order].astype(float), epochs.values[order]
    steps = np.asarray(steps, float)
    slope = max(0.0, (values[-1] - values[0]) / (at[-1] - at[0])) if at[-1] > at[0] else 0.0
    return np.interp(steps, at, values) + slope * (steps - np.clip(steps, at[0], at[-1]))
