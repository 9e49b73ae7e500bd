"""Axes of plots: limits, linear or logarithmic positions, round ticks with labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

__all__ = ["limits", "log_ticks", "pieces", "scaled", "ticks", "time_ticks"]

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, *(hours * _HOUR for hours in (1, 2, 3, 6, 12)))


def scaled(values: np.ndarray, log_y: bool) -> np.ndarray:
    """Return (n,) positions on an axis: values clipped so that limits can be subtracted, or decimal logarithms.

    NaN are gaps: NaN, infinities, and on a logarithmic axis values that are not above 0.
    """
    if not log_y:
        return np.where(np.isfinite(values), np.clip(values, -1e300, 1e300), np.nan)
    return np.log10(values, out=np.full(len(values), np.nan), where=np.isfinite(values) & (values > 0))


def limits(values: np.ndarray, margin: float = 0.0, around: float = 0.0) -> tuple[float, float]:
    """Return the limits of an axis that shows these finite values; 0 and 1 without any.

    `margin` is the room on each side, as a share of the range; `around` that around a single value, where 0 means a
    tenth of it, or 0.5 around 0.
    """
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    room = (high - low) * margin
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        room = around or abs(low) * 0.1 or 0.5
    return low - room, high + room


def pieces(y: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the positions of each stretch of finite values between the gaps (NaN or infinite) of a curve."""
    finite = np.flatnonzero(np.isfinite(y))
    if len(finite):
        yield from np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1)


def ticks(low: float, high: float, num: int) -> list[tuple[float, str]]:
    """Return about `num` round numbers from `low` to `high`, ascending, with their labels.

    They are multiples of 1, 2, 2.5 or 5 times a power of ten, with labels of four digits.
    """
    rough = (high - low) / max(1, num)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * power for factor in (1, 2, 2.5, 5) if factor * power >= rough), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(number * step, _label(number * step)) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return ticks of a logarithmic axis: powers of ten, and multiples of them if few powers are in the range.

    The limits and the ticks are decimal logarithms; the labels are the values.
    """
    if high - low > 5:
        return [(value, f"1e{value:g}") for value, _ in ticks(low, high, 5) if value == round(value)]
    factors = (1,) if high - low > 2 else (1, 2, 5) if high - low > 0.5 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    powers = range(math.floor(low), min(308, math.ceil(high) + 1))
    values = [factor * 10.0**power for power in powers for factor in factors]
    return [(math.log10(value), _label(value)) for value in values if low <= math.log10(value) <= high]


def _label(value: float) -> str:
    return f"{value + 0.0:.4g}"


def time_ticks(low: float, high: float, num: int) -> list[tuple[float, str]]:
    """Return about `num` round times from `low` to `high`, in seconds since 1970, with short labels in UTC."""
    rough = max(high - low, 1e-9) / max(1, num)
    step = next((step for step in _TIME_STEPS if step >= rough), _DAY * math.ceil(rough / _DAY))
    form = "%H:%M:%S" if step < _MINUTE else "%H:%M" if step < _DAY and high - low < _DAY else "%m-%d %H:%M"
    form = "%Y-%m-%d" if step >= _DAY else form
    times = [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(time, datetime.fromtimestamp(time, UTC).strftime(form)) for time in times]
