"""Fewer points that still show what a curve does."""

from __future__ import annotations

import numpy as np

from observers.record.points import Series
from runs.errors import FilterError

__all__ = ["downsample"]


def downsample(series: Series, num_points: int) -> Series:
    """Return at most `num_points` points of `series`, among them its first, its last and the extremes of every stretch.

    The series is cut into stretches of equal length, and each gives its least and its greatest value, in their order.
    A stretch that holds a NaN gives that in place of its greatest, so that a gap in the curve shows. Source: the
    min-max aggregation of Jugel et al., https://doi.org/10.14778/2732951.2732953

    Args:
        series: (n,) points.
        num_points: At least 4.

    Raises:
        FilterError: If `num_points` is less.
    """
    if num_points < 4:
        raise FilterError(f"num_points: got {num_points}, expected at least 4")
    count = len(series)
    if count <= num_points:
        return series
    stretches = (num_points - 2) // 2
    inner = series.values[1:-1]
    length = len(inner) // stretches
    # Stretches of one length go through numpy at once; the points that are left belong to the last one.
    square = inner[: length * stretches].reshape(stretches, length)
    starts = np.arange(stretches) * length
    rest = inner[length * stretches :]
    low, high = _extremes(square)
    chosen = np.concatenate([starts + low, starts + high])
    if len(rest):
        offset = length * (stretches - 1)
        low, high = _extremes(inner[offset:][None])
        chosen[stretches - 1], chosen[-1] = offset + low[0], offset + high[0]
    chosen = np.unique(np.concatenate([[0], chosen + 1, [count - 1]]))
    return Series(series.steps[chosen], series.values[chosen], series.times[chosen])


def _extremes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the least and the greatest value of each row; of a NaN, if there is one."""
    nan = np.isnan(values)
    if not nan.any():
        return values.argmin(1), values.argmax(1)
    # argmax takes the first NaN for the greatest.
    return np.where(nan, np.inf, values).argmin(1), values.argmax(1)
