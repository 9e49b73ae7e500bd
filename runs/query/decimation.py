"""Downsampling of curves that keeps extremes, gaps and both ends."""

from __future__ import annotations

import math

import numpy as np

from sacristan.observers.record.points.points import Series
from sacristan.runs.errors import FilterError

__all__ = ["downsample", "pixels"]


def pixels(
    x: np.ndarray,
    y: np.ndarray,
    num_pixels: int,
    low: float | None = None,
    high: float | None = None,
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> np.ndarray:
    """Return the positions of the points that draw a curve exactly as all its points would.

    Each column of pixels keeps its minimum, its maximum and its first gap: NaN, an infinity or, on a logarithmic axis,
    a value that is not above 0. One point on either side of the range is kept too, so that lines reach the edge.
    1,000,000 points take about 10 ms. Source: the min-max aggregation of Jugel et al.,
    https://doi.org/10.14778/2732951.2732953

    `x` (n,) is ascending and finite, `y` is (n,). The positions (m,) are ascending, at most 3 per column plus 4. `low`
    and `high` are the curve's first and last point by default. A logarithmic x axis lacks positions that are not above
    0.
    """
    if log_x:
        num_before = int(np.searchsorted(x, 0, "right"))
        ends = (None if end is None or end <= 0 else math.log10(end) for end in (low, high))
        return num_before + pixels(np.log10(x[num_before:]), y[num_before:], num_pixels, *ends, log_y=log_y)
    if log_y:
        y = np.where(y > 0, y, np.nan)
    first = 0 if low is None else int(np.searchsorted(x, low, "left"))
    last = len(x) if high is None else int(np.searchsorted(x, high, "right"))
    around = [position for position in (first - 1, last) if 0 <= position < len(x)]
    if last - first <= 3 * num_pixels:
        chosen = np.arange(first, last)
    else:
        inside = x[first:last]
        edges = np.linspace(inside[0] if low is None else low, inside[-1] if high is None else high, num_pixels + 1)
        starts = np.unique(np.append(0, np.searchsorted(inside, edges[:-1])))
        starts = starts[starts < len(inside)]
        chosen = first + np.concatenate([[0], _extremes(y[first:last], starts), [len(inside) - 1]])
    return np.unique(np.concatenate([np.array(around, int), chosen]))


def downsample(series: Series, num_points: int) -> Series:
    """Return a series with fewer points that keeps its first point, its last, and the extremes in between.

    The series is cut into sections of equal length. Each keeps its minimum, its maximum and its first NaN or infinity;
    see `pixels`. Fewer than 4 for `num_points` raises FilterError.
    """
    if num_points < 4:
        raise FilterError(f"num_points: got {num_points}, expected at least 4")
    count = len(series)
    if count <= num_points:
        return series
    inner = series.values[1:-1]
    sections = max(1, (num_points - 2) // (2 if np.isfinite(inner).all() else 3))
    starts = np.arange(sections) * (len(inner) // sections)
    chosen = np.unique(_extremes(inner, starts))[: num_points - 2]
    chosen = np.concatenate([[0], chosen + 1, [count - 1]])
    return Series(series.steps[chosen], series.values[chosen], series.times[chosen])


def _extremes(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the positions of the first least, the first greatest and the first not finite value of each section.

    `values` (n,) is not empty; `starts` (k,) are the beginnings of the sections, ascending from 0.
    """
    lengths = np.diff(starts, append=len(values))
    is_finite = np.isfinite(values)
    values = np.where(is_finite, values, np.nan)  # beside an infinity the finite extremes would be lost
    found = []
    for most in (np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)):
        found.append(_first(values == np.repeat(most, lengths), starts))
    return np.concatenate(found if is_finite.all() else [*found, _first(~is_finite, starts)])


def _first(is_meant: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the first position in each section at which `is_meant` holds, without sections that lack one."""
    positions = np.flatnonzero(is_meant)
    sections = np.searchsorted(starts, positions, "right")
    return positions[np.diff(sections, prepend=0) > 0]
