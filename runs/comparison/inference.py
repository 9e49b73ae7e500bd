"""Statistics of small samples: intervals, tests, effect sizes, power. Arrays and numbers only, no runs.

All intervals and tests rest on Student's t distribution: they assume that the values (for paired tests the differences)
are independent draws from a normal distribution. `scipy.special.stdtr` and `stdtrit` are that distribution and its
inverse, https://docs.scipy.org/doc/scipy/reference/special.html. `scipy.stats` takes four times as long to import, and
squares the values as they are, so that 1e200 overflows.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from bisect import bisect_left
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

# Values that differ by rounding alone are equal: a variance of rounding errors would prove anything.
_ROUNDING = 64 * np.finfo(np.float64).eps


@dataclasses.dataclass(frozen=True)
class Sample:
    """Statistics of one group of values."""

    n: int  # number of values
    mean: float | None  # their mean; None if there are none
    std: float | None  # their standard deviation, with n - 1; None for fewer than two
    # Student's interval of the mean; None for fewer than two.
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True)
class MeanDifference:
    """The difference of the means of two groups, the first minus the second, and its test."""

    method: str  # `paired t` or `welch t`
    n: int  # number of pairs, or of values in both groups
    value: float | None  # the difference; None if a group is empty
    # The interval of the difference; None without a test.
    low: float | None = None
    high: float | None = None
    # Statistic, degrees of freedom and two-sided p; None if no test is possible.
    t: float | None = None
    df: float | None = None
    p: float | None = None
    effect: float | None = None  # standardized difference, without the bias of small samples
    effect_name: str = "g"  # `g_z` (in standard deviations of the differences) or `g` (in pooled standard deviations)
    reason: str = ""  # why there is no p; empty if there is one


def sample(values: np.ndarray, confidence: float = 0.95) -> Sample:
    """Return mean, standard deviation and Student's interval of the mean of (n,) finite values.

    Source: Student 1908, "The probable error of a mean", https://doi.org/10.1093/biomet/6.1.1
    """
    values = np.asarray(values, np.float64)
    n = len(values)
    if n == 0:
        return Sample(0, None, None, None, None)
    scaled, scale = _scaled(values)
    mean, std = _moments(scaled)
    if n == 1:
        return Sample(1, float(values[0]), None, None, None)
    half = _quantile(n - 1, confidence) * std / math.sqrt(n)
    return Sample(n, mean * scale, std * scale, (mean - half) * scale, (mean + half) * scale)


def mean_interval(means: np.ndarray, stds: np.ndarray, counts: np.ndarray, confidence: float) -> np.ndarray:
    """Return half the width of Student's interval for (n,) means, with stds of count - 1; NaN below two values."""
    from scipy.special import stdtrit

    half = np.full(len(means), np.nan)
    enough = counts >= 2
    quantiles = stdtrit(counts[enough] - 1.0, 0.5 + confidence / 2)
    half[enough] = quantiles * stds[enough] / np.sqrt(counts[enough])
    return half


def paired_test(first: np.ndarray, second: np.ndarray, confidence: float = 0.95) -> MeanDifference:
    """Test the differences of (n,) pairs of finite values with Student's t-test; the effect size is g_z.

    g_z is d_z without its bias. There is no p, but a reason, for fewer than two pairs or equal differences.

    Sources: Student 1908, https://doi.org/10.1093/biomet/6.1.1; why to compare experiments with shared seeds in pairs:
    Bouthillier et al. 2021, https://arxiv.org/abs/2103.03098; d_z: Lakens 2013, formula 6,
    https://doi.org/10.3389/fpsyg.2013.00863
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    n = len(first)
    none = MeanDifference("paired t", n, None, effect_name="g_z", reason=f"{n} pairs, and at least 2 are needed")
    if n == 0:
        return none
    both, scale = _scaled(np.concatenate([first, second]))
    differences = both[:n] - both[n:]
    mean, std = _moments(differences, np.abs(both).max())
    if n == 1:
        return dataclasses.replace(none, value=mean * scale, reason="1 pair, and at least 2 are needed")
    if std == 0:
        reason = f"all {n} differences are equal: no test is possible"
        return dataclasses.replace(none, value=mean * scale, reason=reason)
    # With one degree of freedom, d_z has no expectation.
    effect = mean / std * correction(n - 1) if n > 2 else None
    return _student("paired t", n, (mean, std / math.sqrt(n), n - 1.0), scale, confidence, effect, "g_z")


def welch_test(first: np.ndarray, second: np.ndarray, confidence: float = 0.95) -> MeanDifference:
    """Test (n,) and (m,) finite values with Welch's t-test, for unequal variances; the effect size is Hedges' g.

    There is no p, but a reason, for groups of one value or without variance.

    Sources: Welch 1947, https://doi.org/10.1093/biomet/34.1-2.28; why not Student's: Delacre et al. 2017,
    https://doi.org/10.5334/irsp.82; in our field: Colas et al. 2019, https://arxiv.org/abs/1904.06979; g: Hedges 1981,
    https://doi.org/10.3102/10769986006002107
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    n, m = len(first), len(second)
    reason = f"{n} and {m} values, and at least 2 in each are needed"
    if not n or not m:
        return MeanDifference("welch t", n + m, None, reason=reason)
    both, scale = _scaled(np.concatenate([first, second]))
    (mean, std), (other_mean, other_std) = _moments(both[:n]), _moments(both[n:])
    difference = mean - other_mean
    if n < 2 or m < 2:
        return MeanDifference("welch t", n + m, difference * scale, reason=reason)
    parts = std**2 / n, other_std**2 / m
    error = math.sqrt(sum(parts))
    if error == 0:
        reason = "neither group varies: no test is possible"
        return MeanDifference("welch t", n + m, difference * scale, reason=reason)
    # Satterthwaite's degrees of freedom, from shares: the squares would underflow.
    shares = [part / sum(parts) for part in parts]
    df = 1 / (shares[0] ** 2 / (n - 1) + shares[1] ** 2 / (m - 1))
    pooled = math.sqrt(((n - 1) * std**2 + (m - 1) * other_std**2) / (n + m - 2))
    effect = difference / pooled * correction(n + m - 2)
    return _student("welch t", n + m, (difference, error, df), scale, confidence, effect, "g")


def are_paired(first: Collection[Hashable], second: Collection[Hashable]) -> bool:
    """Tell whether to compare two groups in pairs: they share two repetitions, and half of those of each."""
    shared = sum(repetition in second for repetition in first)
    return shared >= max(2, len(first) / 2, len(second) / 2)


def repetition_test(
    first: Mapping[Any, float],
    second: Mapping[Any, float],
    confidence: float = 0.95,
    is_paired: bool | None = None,
) -> MeanDifference:
    """Test two groups by the finite values of their repetitions; `is_paired=None` decides by `are_paired`."""
    if are_paired(first, second) if is_paired is None else is_paired:
        shared = [key for key in first if key in second]
        one, other = (np.array([values[key] for key in shared]) for values in (first, second))
        return paired_test(one, other, confidence)
    one, other = (np.array(list(values.values())) for values in (first, second))
    return welch_test(one, other, confidence)


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p values, in their order, for the number of tests: the chance of a single false finding stays bounded.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure", https://www.jstor.org/stable/4615733
    """
    corrected = [0.0] * len(ps)
    greatest = 0.0
    for rank, position in enumerate(sorted(range(len(ps)), key=lambda position: ps[position])):
        greatest = max(greatest, min(1.0, (len(ps) - rank) * ps[position]))
        corrected[position] = greatest
    return corrected


def correction(df: float) -> float:
    """Return the factor that removes the bias of a standardized mean difference: Hedges 1981, formula 6e, exactly.

    The factor is 0 up to one degree of freedom, where the difference has no expectation.
    """
    if df <= 1:
        return 0.0
    return math.exp(math.lgamma(df / 2) - math.lgamma((df - 1) / 2)) / math.sqrt(df / 2)


def _student(
    method: str,
    n: int,
    of: tuple[float, float, float],
    scale: float,
    confidence: float,
    effect: float | None,
    effect_name: str,
) -> MeanDifference:
    """Return the test of a difference, given with its standard error and degrees of freedom."""
    from scipy.special import stdtr

    difference, error, df = of
    t = difference / error
    half = _quantile(df, confidence) * error
    return MeanDifference(
        method,
        n,
        difference * scale,
        (difference - half) * scale,
        (difference + half) * scale,
        t,
        df,
        float(2 * stdtr(df, -abs(t))),
        effect,
        effect_name,
    )


def _quantile(df: float, confidence: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(df, 0.5 + confidence / 2))


def _scaled(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Divide values by a power of two, exactly, so that squares neither overflow nor underflow; return both."""
    greatest = float(np.abs(values).max())
    if greatest == 0:
        return values, 1.0
    # 2**1024 is no float, and values below 2**-1000 may stay small.
    exponent = min(max(math.frexp(greatest)[1], -1000), 1023)
    return np.ldexp(values, -exponent), math.ldexp(1.0, exponent)


def _moments(values: np.ndarray, size: float | None = None) -> tuple[float, float]:
    """Return mean and standard deviation; the latter is 0 if values differ only by rounding, relative to `size`."""
    size = float(np.abs(values).max()) if size is None else size
    if float(np.ptp(values)) <= _ROUNDING * size:
        return float(values[0] if np.ptp(values) == 0 else np.median(values)), 0.0
    # Exact sums, so that the order of the values changes nothing.
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((values - mean) ** 2) / (len(values) - 1))


def share_interval(share: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return both limits of Wilson's interval of a share, such as the accuracy on n independent samples.

    Source: Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953
    """
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


_MOST_VALUES = 1_000_000
# Beyond this distance a test finds the difference all but surely, and no float holds the noncentral t distribution.
_SURE_DISTANCE = 30.0


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
        if low >= _MOST_VALUES:
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
    if noncentrality > critical + _SURE_DISTANCE:
        return 1.0
    return float(1 - nctdtr(df, noncentrality, critical) + nctdtr(df, noncentrality, -critical))
