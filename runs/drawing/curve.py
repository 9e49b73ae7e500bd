"""`Curve` and `Panel`: lines of a plot over steps, epochs or time, and the axes that they share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from sacristan.observers.record.points import Series
from sacristan.runs.errors import FilterError, PlotError

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, *(hours * _HOUR for hours in (1, 2, 3, 6, 12)))
X_AXES = ("step", "epoch", "time", "wall")
# Distinct to any kind of colour vision: Okabe and Ito 2008, https://jfly.uni-koeln.de/color/, without the yellow, which
# is too light for a line on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# The data that a metric may be measured on, as the first part of its name.
_PARTS = frozenset(("dev", "eval", "test", "train", "training", "val", "valid", "validation"))


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
    """Return about `num` round numbers from `low` to `high`, ascending, with their labels of four digits."""
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


@dataclasses.dataclass(frozen=True)
class Curve:
    """One line of a plot."""

    label: str
    x: np.ndarray  # (n,) ascending positions; steps stay integers
    y: np.ndarray  # (n,) values; NaN and infinities are gaps
    # (n,) edges of the band, NaN where there is none; None without a band.
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    counts: np.ndarray | None = None  # (n,) number of runs behind each point
    raw: np.ndarray | None = None  # (n,) the values before smoothing; None if they were not smoothed
    key: str = ""  # identifies the run or group in every panel, whatever its label there
    part: int = 0  # number of its metric in the panel
    # (n,) the step of each point, and its time in seconds since the start; None for means, and if some points were left
    # out to draw the others.
    steps: np.ndarray | None = None
    times: np.ndarray | None = None
    # Position of the run's own first point, after those of the runs that it was started from, if any.
    own_from: float | None = None
    # Number of logged points that the curve lacks, by the reason.
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def num_inherited(self) -> int:
        return 0 if self.own_from is None else int(np.searchsorted(self.x, self.own_from))


@dataclasses.dataclass(frozen=True)
class Panel:
    """One set of axes with curves, at least one, for a terminal, a picture or a page."""

    metric: str  # the metric, or the common part of several, such as `loss` of `train/loss` and `val/loss`
    curves: tuple[Curve, ...]
    x_label: str
    # Facts that the plot does not show: runs without the metric, the kind of band; a sentence each.
    notes: tuple[str, ...]
    log_y: bool = False
    is_time: bool = False  # whether positions are seconds since 1970


def curve_of(
    series: Series, label: str = "", x: str = "step", *, others: np.ndarray | None = None, start_s: float = 0.0
) -> Curve:
    """Return the curve of one run.

    Of a step that was logged again after a smaller one, as by a resumed run, the last values count. NaN stays. `x` is
    `step`, `time` in seconds since the start, `wall`, in seconds since 1970 (with `start_s`), or `epoch` or a metric
    (with `others`, its (n,) values at the points); others raise PlotError.
    """
    axes = {"step": series.steps, "time": series.times, "wall": start_s + series.times}
    positions = axes.get(x, others)
    if positions is None:
        raise PlotError(f"x: got {x!r}, expected one of {', '.join(X_AXES)}, or a metric")
    is_placed = np.isfinite(positions)
    is_current = np.ones(len(series), bool) if x in ("time", "wall") else ~_is_repeated(series.steps)
    usable = np.flatnonzero(is_placed & is_current)
    order = usable[np.argsort(positions[usable], kind="stable")]
    reasons = {f"without a {'time' if x == 'wall' else x}": ~is_placed, "whose step was logged again": ~is_current}
    left_out = {reason: int(is_lacking.sum()) for reason, is_lacking in reasons.items() if is_lacking.any()}
    steps, times = (positions[order] if of is positions else of[order] for of in (series.steps, series.times))
    return Curve(label, positions[order], series.values[order], steps=steps, times=times, left_out=left_out)


def _is_repeated(steps: np.ndarray) -> np.ndarray:
    """Tell which points lie at a step that was logged again after a smaller step."""
    is_repeated = np.zeros(len(steps), bool)
    is_back = np.diff(steps) < 0
    if is_back.any():
        stretch = np.append(0, np.cumsum(is_back))
        order = np.argsort(steps, kind="stable")
        is_last = np.append(np.diff(steps[order]) > 0, True)
        last = stretch[order][is_last][np.cumsum(is_last) - is_last]
        is_repeated[order] = stretch[order] < last
    return is_repeated


def thin(
    curve: Curve,
    num_points: int,
    low: float | None = None,
    high: float | None = None,
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> Curve:
    """Return a curve of at most `num_points` points between `low` and `high` that looks the same; see `pixels`.

    A few points beyond either end are added. `num_points` is at least 4; None is an open end.
    """
    if len(curve.x) <= num_points and low is None and high is None:
        return curve
    lines = [line for line in (curve.y, curve.raw, curve.low, curve.high) if line is not None]
    has_gaps = not all(np.isfinite(line).all() for line in lines) or (
        log_y and any((line <= 0).any() for line in lines)
    )
    columns = max(1, (num_points - 2) // ((3 if has_gaps else 2) * len(lines)))
    positions = [pixels(curve.x, line, columns, low, high, log_x=log_x, log_y=log_y) for line in lines]
    chosen = positions[0] if len(positions) == 1 else np.unique(np.concatenate(positions))
    arrays = {name: getattr(curve, name) for name in ("x", "y", "low", "high", "counts", "raw")}
    thinned: dict[str, Any] = {name: values[chosen] for name, values in arrays.items() if values is not None}
    return dataclasses.replace(curve, steps=None, times=None, **thinned)


def panelled(metrics: Sequence[str]) -> dict[str, list[str]]:
    """Group metrics into panels by title, in order: `train/loss` and `val/loss` share `loss`."""
    panels: dict[str, list[str]] = {}
    for metric in dict.fromkeys(metrics):
        part, _, rest = metric.partition("/")
        shared = [other for other in metrics if other.partition("/")[2] == rest and other.partition("/")[0] in _PARTS]
        together = part in _PARTS and rest and len(set(shared)) > 1
        panels.setdefault(rest if together else metric, []).append(metric)
    return panels


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
    positions = []
    for most in (np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)):
        positions.append(_first(values == np.repeat(most, lengths), starts))
    return np.concatenate(positions if is_finite.all() else [*positions, _first(~is_finite, starts)])


def _first(is_meant: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the first position in each section at which `is_meant` holds, without sections that lack one."""
    positions = np.flatnonzero(is_meant)
    sections = np.searchsorted(starts, positions, "right")
    return positions[np.diff(sections, prepend=0) > 0]
