"""Curves of metrics: smoothed, and the mean of several with a band."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from sacristan.runs.comparison.inference import mean_interval
from sacristan.runs.drawing.curve import Curve
from sacristan.runs.errors import PlotError

__all__ = ["BANDS", "mean_curve", "smooth", "smoothed"]

BANDS = ("interval", "range", "none")
# Maximum size of the table of a mean, with a row for each run and a column for each position: 80 MB.
_MAX_CELLS = 10_000_000


def smooth(curve: Curve, weight: float) -> Curve:
    """Smooth a curve without a band; its `raw` keeps the original values. See `smoothed`."""
    values = smoothed(curve.y, weight)
    return curve if weight == 0 else dataclasses.replace(curve, y=values, raw=curve.y)


def smoothed(values: np.ndarray, weight: float) -> np.ndarray:
    """Return exponential moving averages of (n,) values, corrected for the bias towards the start.

    `weight` is TensorBoard's smoothing, and the curve is TensorBoard's; gaps stay and count for nothing. 1,000,000
    values take about 0.2 s. Pass all of them: the average of a thinned curve is another curve. Raises PlotError if
    `weight` is not in [0, 1).
    Sources: `resmoothDataset` in
    https://github.com/tensorflow/tensorboard/blob/34877f15/tensorboard/components/vz_line_chart2/line-chart.ts,
    the correction is Adam's, Kingma and Ba 2015, https://arxiv.org/abs/1412.6980, section 3.
    """
    if not 0 <= weight < 1:
        raise PlotError(f"smoothing: got {weight}, expected a number from 0 to below 1, such as 0.6")
    if weight == 0:
        return values
    result = values.astype(np.float64)
    is_finite = np.isfinite(result)
    share = 1 - weight
    averages = itertools.accumulate(
        result[is_finite].tolist(), lambda average, value: weight * average + share * value, initial=0.0
    )
    num_values = int(is_finite.sum())
    sums = np.fromiter(itertools.islice(averages, 1, None), np.float64, num_values)
    result[is_finite] = sums / (1 - weight ** np.arange(1.0, num_values + 1))
    return result


def mean_curve(curves: Sequence[Curve], label: str = "", band: str = "interval", confidence: float = 0.95) -> Curve:
    """Return the mean of at least one curve, each from an independent repetition.

    Curves with different positions are interpolated on straight lines between their own points, never beyond the first
    and last, and not across a gap. So fewer curves may count at some points: `counts` has the number. Several values of
    a curve at one position count with their mean. The interval is Student's interval of the mean, position by position:
    it does not hold for the curve as a whole. `band` is `interval`, `range` from the least to the greatest value, or
    `none`; others raise PlotError.
    """
    if band not in BANDS:
        raise PlotError(f"band: got {band!r}, expected one of {', '.join(BANDS)}")
    positions = _positions(curves)
    table = np.stack([_at(curve, positions) for curve in curves])
    counts = np.isfinite(table).sum(0)
    table[~np.isfinite(table)] = np.nan
    some = counts > 0
    mean = np.full(len(positions), np.nan)
    mean[some] = np.nanmean(table[:, some], axis=0)
    low, high = _edges(table, mean, counts, band, confidence)
    raw = None
    if any(curve.raw is not None for curve in curves):
        before = [
            dataclasses.replace(curve, y=curve.y if curve.raw is None else curve.raw, raw=None) for curve in curves
        ]
        raw = mean_curve(before, band="none").y
    left_out = sum((collections.Counter(curve.left_out) for curve in curves), collections.Counter())
    return Curve(label, positions, mean, low, high, counts, raw, left_out=left_out)


def _edges(
    table: np.ndarray, mean: np.ndarray, counts: np.ndarray, band: str, confidence: float
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the edges of a band around the mean of a table that has a row for each curve."""
    if band == "none":
        return None, None
    if band == "range":
        low, high, some = mean.copy(), mean.copy(), counts > 0
        low[some], high[some] = np.nanmin(table[:, some], axis=0), np.nanmax(table[:, some], axis=0)
        return low, high
    std = np.full(len(mean), np.nan)
    std[counts >= 2] = np.nanstd(table[:, counts >= 2], axis=0, ddof=1)
    half = mean_interval(mean, std, counts, confidence)
    return mean - half, mean + half


def _positions(curves: Sequence[Curve]) -> np.ndarray:
    """Return all positions of the curves, or evenly chosen ones if they are too many."""
    positions = np.unique(np.concatenate([curve.x for curve in curves]))
    most = max(1000, _MAX_CELLS // len(curves))
    if len(positions) > most:
        positions = positions[np.linspace(0, len(positions) - 1, most).round().astype(int)]
    return positions


def _at(curve: Curve, positions: np.ndarray) -> np.ndarray:
    if len(curve.x) == len(positions) and np.array_equal(curve.x, positions):
        return curve.y.copy()
    if not len(curve.x):
        return np.full(len(positions), np.nan)
    x, starts = np.unique(curve.x, return_index=True)
    y = np.where(np.isfinite(curve.y), curve.y, np.nan)
    if len(x) < len(y):
        counts = np.add.reduceat(np.isfinite(y).astype(int), starts)
        shares = np.nan_to_num(y) / np.repeat(np.maximum(counts, 1), np.diff(starts, append=len(y)))
        y = np.where(counts > 0, np.add.reduceat(shares, starts), np.nan)
    return np.interp(positions, x, y, left=np.nan, right=np.nan)
