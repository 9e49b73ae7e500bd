"""The number of repetitions that a comparison needs to find a difference, if it is as large as it seems."""

from __future__ import annotations

import math

__all__ = ["num_to_tell_apart"]

_MOST = 1_000_000
# Beyond it a test finds the difference all but surely, and the noncentral t distribution is no float.
_SURE = 30.0


def num_to_tell_apart(
    difference: float, std: float, other_std: float | None = None, *, confidence: float = 0.95, power: float = 0.8
) -> int | None:
    """Return how many values of each group, or pairs of values, a t-test needs to find a difference of means.

    By the noncentral t distribution, which is exact for pairs of normal values, and for groups that vary as much as
    each other: Cohen 1988, "Statistical power analysis for the behavioral sciences", chapter 2.

    Args:
        difference: Of the means.
        std: Standard deviation of the first group, or, without `other_std`, of the differences within pairs.
        other_std: Standard deviation of the second group, which has as many values.
        confidence: The test finds a difference where p is below 1 - confidence.
        power: The probability that it does.

    Returns:
        The number, at least 2; None if a million is too few.
    """
    spread = math.hypot(std, other_std or 0.0)
    if not difference:
        return None
    if not spread:
        return 2
    # The degrees of freedom of Satterthwaite, for each value of a group but one.
    share = 1.0 if other_std is None else (std / spread) ** 2
    per_value = 1 / (share**2 + (1 - share) ** 2)
    low, high = 1, 2
    while _power(high, abs(difference) / spread, per_value, confidence) < power:
        low, high = high, 2 * high
        if low >= _MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        enough = _power(middle, abs(difference) / spread, per_value, confidence) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high


def _power(n: int, size: float, per_value: float, confidence: float) -> float:
    """Return the probability that a two-sided test of n values finds a difference of `size` standard deviations."""
    from scipy.special import nctdtr, stdtrit

    df = (n - 1) * per_value
    noncentrality, critical = size * math.sqrt(n), float(stdtrit(df, 0.5 + confidence / 2))
    if noncentrality > critical + _SURE:
        return 1.0
    return float(1 - nctdtr(df, noncentrality, critical) + nctdtr(df, noncentrality, -critical))
