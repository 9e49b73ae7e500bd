"""Round numbers and times for the ticks of axes."""

from __future__ import annotations

import math
from datetime import UTC, datetime

__all__ = ["log_ticks", "tick_label", "ticks", "time_ticks"]

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, *(hours * _HOUR for hours in (1, 2, 3, 6, 12)))


def ticks(low: float, high: float, num: int) -> list[float]:
    """Return about `num` round numbers (1, 2, 2.5 or 5 times a power of ten) from `low` to `high`."""
    rough = (high - low) / max(1, num)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * power for factor in (1, 2, 2.5, 5) if factor * power >= rough), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return exponents of powers of ten, and of 2 and 5 times these where there are few of them, with their labels."""
    if high - low > 5:
        return [(value, f"1e{value:g}") for value in ticks(low, high, 5) if value == round(value)]
    factors = (1,) if high - low > 2 else (1, 2, 5) if high - low > 0.5 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    powers = range(math.floor(low), min(308, math.ceil(high) + 1))
    found = [factor * 10.0**power for power in powers for factor in factors]
    return [(math.log10(value), tick_label(value)) for value in found if low <= math.log10(value) <= high]


def tick_label(value: float) -> str:
    """Return the label of a tick, of four digits."""
    return f"{value + 0.0:.4g}"


def time_ticks(low: float, high: float, num: int) -> list[tuple[float, str]]:
    """Return about `num` round times, in seconds since 1970, and their labels, in UTC."""
    rough = max(high - low, 1e-9) / max(1, num)
    step = next((step for step in _TIME_STEPS if step >= rough), _DAY * math.ceil(rough / _DAY))
    form = "%H:%M:%S" if step < _MINUTE else "%H:%M" if step < _DAY and high - low < _DAY else "%m-%d %H:%M"
    form = "%Y-%m-%d" if step >= _DAY else form
    times = [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(time, datetime.fromtimestamp(time, UTC).strftime(form)) for time in times]
