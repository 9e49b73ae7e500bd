"""The number of repetitions that a comparison needs to detect a difference of the measured size."""

from __future__ import annotations

import math
from bisect import bisect_left

__all__ = ["num_to_tell_apart"]

_MOST = 1_000_000
# Beyond this distance a test finds the difference all but surely, and no float holds the noncentral t distribution.
_SURE = 30.0


def num_to_tell_apart(
    difference: float, std: float, other_std: float | None = None, *, confidence: float = 0.95, power: float = 0.8
) -> int | None:
    """Return how many values of each group, or pairs, a t-test needs to detect a difference of means.

    Without `other_std`, `std` is that of the differences within pairs. None if the difference is 0, or more than a
    million would be needed.

    The noncentral t distribution gives the exact number for pairs of normal values, and for groups of equal variance:
    Cohen 1988, "Statistical power analysis for the behavioral sciences", chapter 2.
    """
    spread = math.hypot(std, other_std or 0.0)
    if not difference:
        return None
    if not spread:
        return 2
    # Satterthwaite's degrees of freedom per value of a group beyond the first.
    share = 1.0 if other_std is None else (std / spread) ** 2
    per_value = 1 / (share**2 + (1 - share) ** 2)
    low, high = 1, 2
    while _power(high, abs(difference) / spread, per_value, confidence) < power:
        low, high = high, 2 * high
        if low >= _MOST:
            return None
    numbers = range(low + 1, high + 1)
    return numbers[
        bisect_left(numbers, power, key=lambda num: _power(num, abs(difference) / spread, per_value, confidence))
    ]


def _power(n: int, size: float, per_value: float, confidence: float) -> float:
    """Return the probability that a two-sided test of n values detects a difference of `size` standard deviations."""
    from scipy.special import nctdtr, stdtrit

    df = (n - 1) * per_value
    noncentrality, critical = size * math.sqrt(n), float(stdtrit(df, 0.5 + confidence / 2))
    if noncentrality > critical + _SURE:
        return 1.0
    return float(1 - nctdtr(df, noncentrality, critical) + nctdtr(df, noncentrality, -critical))
