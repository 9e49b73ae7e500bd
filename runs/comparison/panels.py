"""Panels of a plot of past runs: one for each metric, with a curve for each run or the mean of each group."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sacristan.configs.map import abbreviated
from sacristan.configs.nearest import word_suggestion
from sacristan.runs.comparison import ExcludedRun, Group, differences_within, group_runs
from sacristan.runs.comparison.curves import Ancestry, Quantity, mean_curve, run_curve, smooth
from sacristan.runs.drawing.curve import X_AXES, Curve, Panel, panelled, thin
from sacristan.runs.errors import PlotError
from sacristan.runs.query.texts import count_text
from sacristan.runs.stores import Run, prefetch
from sacristan.runs.stores.run import points_versions
from sacristan.runs.stores.settings import run_labels

if TYPE_CHECKING:
    from sacristan.observers.record.points import Series

# Maximum number of changes of n to list for a mean.
_MAX_CHANGES = 4
_X_LABELS = {"time": "seconds since the start", "wall": "time (UTC)"}


@dataclasses.dataclass(frozen=True)
class View:
    """Options of a plot: without fields in `by`, every run is drawn, else the means of groups."""

    by: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    # `step`, `epoch`, `time`, `wall`, or a metric or expression; see `sacristan.runs.comparison.curves.run_curve`.
    x: str = "step"
    smoothing: float = 0.0
    band: str = "interval"  # `interval`, `range` or `none`, around means
    confidence: float = 0.95
    log_y: bool = False  # use a logarithmic axis; values that are not above 0 are gaps
    num_points: int = 2000  # maximum number of points of a curve, without a few beside the range
    # The range of positions to draw; None for the start or the end of a curve.
    between: tuple[float | None, float | None] = (None, None)
    joined: bool = False  # whether single runs are joined to the runs that they were started from
    log_x: bool = False  # choose the points for a logarithmic axis of positions, which lacks those that are not above 0


def make_panels(runs: Sequence[Run], metrics: Sequence[str], view: View) -> list[Panel]:
    """Return a panel for each metric or expression; training and validation metrics of the same name share one.

    The panels keep the order of the metrics; their notes name gaps, runs without a metric, and excluded runs. Raises
    PlotError if no run has a metric, or no value fits a logarithmic axis.
    """
    return [make_panel(title, parts, runs, view) for title, parts in panelled(metrics).items()]


def make_panel(
    title: str,
    metrics: Sequence[str],
    runs: Sequence[Run],
    view: View,
    labels: Mapping[Run, str] | None = None,
    kept: CurveCache | None = None,
) -> Panel:
    """Return one panel of all metrics; see `make_panels`. The default `labels` read the configs of all runs."""
    runs = [run.listed() for run in runs]
    _check(runs, view)
    prefetch(runs, ["metrics", "status", "start_time"])
    existing = {name for run in runs for name in run.metrics}
    having = {quantity: _having(runs, quantity) for quantity in (Quantity.of(one, existing) for one in metrics)}
    if view.x not in X_AXES:
        _having(runs, Quantity.of(view.x, existing))
    # From all runs, so that a run has the same label in every panel.
    labels = {} if view.by else labels or run_labels(runs)
    curves: list[Curve] = []
    notes: list[str] = []
    for number, (quantity, members) in enumerate(having.items()):
        metric = quantity.text
        finish = _Finishing(view)
        if view.by:
            drawn, new = _means(members, runs, quantity, view, finish)
        else:
            drawn, new = _singles(members, quantity, view, labels, finish, kept)
        if lacking := [run.id for run in runs if run not in set(members)]:
            new.append(f"without {metric}: {_named_runs(lacking)}")
        new += finish.notes(metric)
        curves += drawn if len(having) == 1 else _named(drawn, metric.removesuffix(f"/{title}"), number)
        notes += [note for note in new if note not in notes]
    return Panel(title, tuple(curves), _X_LABELS.get(view.x, view.x), tuple(notes), view.log_y, view.x == "wall")


def _check(runs: Sequence[Run], view: View) -> None:
    if not runs:
        raise PlotError("there are no runs to plot; see which there are with: sacristan ls")
    if view.by and view.joined:
        raise PlotError("--joined: expected no --by: joined curves share points, so they are no repetitions")
    if not view.by and view.over:
        raise PlotError("--over: expected --by too, the fields that define the groups whose means are drawn")


def _named(curves: Sequence[Curve], part: str, number: int) -> list[Curve]:
    """Return the curves of one of several metrics in a panel, labelled with the metric's part of the title."""
    names = [part] if len(curves) == 1 else [f"{part}, {curve.label}" for curve in curves]
    return [dataclasses.replace(curve, label=name, part=number) for curve, name in zip(curves, names, strict=True)]


def _having(runs: Sequence[Run], quantity: Quantity) -> list[Run]:
    having = [run for run in runs if quantity.is_of(run)]
    if not having:
        raise _absent(runs, quantity)
    return having


def _absent(runs: Sequence[Run], quantity: Quantity) -> PlotError:
    lacking = [name for name in quantity.names if not any(name in run.metrics for run in runs)]
    if not lacking:
        return PlotError(f"no run has all metrics of {quantity.text!r}")
    names = {name for run in runs[:20] for name in run.metrics}
    existing = sorted(names, key=lambda name: (name.startswith("system/"), name))
    hint = word_suggestion(lacking[0], existing)
    return PlotError(f"no run has the metric {lacking[0]!r}; {hint}")


class _Finishing:
    """Thins complete curves, one by one, and counts their gaps."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._left_out: collections.Counter[str] = collections.Counter()
        self._num_not_finite = self._num_below = 0
        self._is_any_above = False

    def thin(self, curve: Curve) -> ThinCurve:
        values = curve.y if curve.raw is None else curve.raw
        is_finite, is_above = np.isfinite(values), values > 0
        view = self._view
        if view.log_x and (num_before := int(np.searchsorted(curve.x, 0, "right"))):
            left_out = {**curve.left_out, f"whose {view.x} is not above 0, on a logarithmic axis": num_before}
            curve = dataclasses.replace(curve, left_out=left_out)
        thinned = thin(curve, view.num_points, *view.between, log_x=view.log_x, log_y=view.log_y)
        num_below = int((values <= 0).sum())
        return ThinCurve(thinned, int((~is_finite).sum()), num_below, bool((is_above & is_finite).any()))

    def count(self, thinned: ThinCurve) -> Curve:
        self._num_not_finite += thinned.num_not_finite
        self._left_out.update(thinned.curve.left_out)
        if self._view.log_y:
            self._num_below += thinned.num_below
            self._is_any_above |= thinned.is_any_above
        return thinned.curve

    def notes(self, metric: str) -> list[str]:
        """Return notes on the gaps; raise a PlotError if no value suits a logarithmic axis."""
        notes = [f"not drawn: {count_text(num, 'point')} {reason}" for reason, num in self._left_out.items()]
        notes += [f"gaps: {self._num_not_finite} NaN or infinite"] if self._num_not_finite else []
        if self._view.log_y and not self._is_any_above:
            raise PlotError(f"{metric}: no value is above 0, as a logarithmic axis needs; draw it on a linear one")
        return [*notes, f"gaps: {self._num_below} not above 0"] if self._num_below else notes


def _singles(
    runs: Sequence[Run],
    quantity: Quantity,
    view: View,
    labels: Mapping[Run, str],
    finish: _Finishing,
    kept: CurveCache | None,
) -> tuple[list[Curve], list[str]]:
    ancestry = Ancestry(runs if view.joined else ())

    def read(run: Run) -> Series | None:
        return next(series for _, series in quantity.each_series([run])) if quantity.is_of(run) else None

    # The curve of a fork changes with its ancestors.
    kept = CurveCache(0) if kept is None or view.joined else kept
    how = (view.x, view.smoothing, view.num_points, view.between, view.log_x, view.log_y)
    placed = () if view.x in X_AXES else Quantity.of(view.x, {name for run in runs for name in run.metrics}).names
    keys = dict(zip(runs, kept.keys(runs, quantity, how, placed), strict=True))
    cached = {run: one for run, key in keys.items() if (one := kept.get(key)) is not None}
    fresh = quantity.each_series([run for run in runs if run not in cached])
    curves: list[Curve] = []
    joined: list[str] = []
    empty: list[str] = []
    for run, key in keys.items():
        thinned = cached.get(run)
        if thinned is None:
            pieces = ancestry.pieces(run, next(fresh)[1], read)
            thinned = finish.thin(smooth(run_curve(pieces, "", view.x), view.smoothing))
            kept.keep(key, thinned)
        curve = dataclasses.replace(finish.count(thinned), label=labels[run], key=run.id)
        curves.append(curve)
        joined += [run.id] if curve.own_from is not None else []
        empty += [] if len(curve.x) or curve.left_out or view.between != (None, None) else [run.id]
    notes = [f"smoothing {view.smoothing:g}"] if view.smoothing else []
    notes += [f"without a number: {_named_runs(empty)}"] if empty else []
    return curves, [*notes, f"dashed: the points before the start of {_named_runs(joined)}"] if joined else notes


def _means(
    runs: Sequence[Run], among: Sequence[Run], quantity: Quantity, view: View, finish: _Finishing
) -> tuple[list[Curve], list[str]]:
    prefetch(among, ["config"])
    groups, excluded = group_runs(runs, view.by, view.over, among)
    # In the order of the groups, so that only the curves of one group are in memory.
    ordered = [run for group in groups for same in group.repetitions.values() for run in same]
    singles = (
        smooth(run_curve([(run, series)], "", view.x), view.smoothing) for run, series in quantity.each_series(ordered)
    )
    curves: list[Curve] = []
    changes: list[str] = []
    cautions: list[str] = []
    varies = False
    for group in groups:
        if not group.repetitions:
            continue
        curve, counts = _mean(group, singles, view)
        least, most = int(counts.min(initial=len(group.repetitions))), int(counts.max(initial=0))
        count = f"n = {most}" if least == most else f"n = {least} to {most}"
        curves.append(
            dataclasses.replace(finish.count(finish.thin(curve)), label=f"{group.label} ({count})", key=group.label)
        )
        if least < most:
            varies = True
            changes.append(f"{group.label}: {_changes(curve.x, counts, view.x)}")
        if mixed := differences_within(group, (*view.by, *view.over)):
            cautions.append(f"caution: {group.label}: its runs also differ in {mixed}")
    if not curves:
        raise PlotError(f"none of the {len(runs)} runs has {' and '.join(view.over)}")
    variation = ["where n varies, not every run has every point"] * varies
    variation += changes if view.x != "wall" else []
    return curves, [_band_note(view), *variation, *_exclusions(excluded), *cautions]


def _mean(group: Group, singles: Iterator[Curve], view: View) -> tuple[Curve, np.ndarray]:
    """Return the mean of a group's curves, the next ones, and the number of repetitions at each point."""
    repetitions = []
    for same in group.repetitions.values():
        parts = list(itertools.islice(singles, len(same)))  # runs of the same repetition count once
        repetitions.append(parts[0] if len(parts) == 1 else mean_curve(parts, band="none"))
    mean = mean_curve(repetitions, group.label, view.band, view.confidence)
    return mean, np.zeros(0, int) if mean.counts is None else mean.counts


def _band_note(view: View) -> str:
    bands = {
        "interval": f"mean, and its {view.confidence * 100:g}% interval at each point (Student's t; none below n = 2)",
        "range": "mean, and the range from the least to the greatest run",
        "none": "mean",
    }
    return f"{bands[view.band]}{f' of curves smoothed with {view.smoothing:g}' if view.smoothing else ''}"


def _exclusions(excluded: Sequence[ExcludedRun]) -> Iterator[str]:
    """Yield a note for each reason why runs are excluded."""
    ids_of: dict[str, list[str]] = {}
    for entry in excluded:
        ids_of.setdefault("not readable completely" if entry.run.problem else entry.reason, []).append(entry.run.id)
    for reason, ids in ids_of.items():
        lack = reason.removeprefix("has no ")
        yield f"{f'left out: {reason}' if lack == reason else f'without {lack}'}: {_named_runs(ids)}"


def _changes(x: np.ndarray, counts: np.ndarray, axis: str) -> str:
    """Describe how many runs a mean has, and where that changes."""
    starts = np.flatnonzero(np.diff(counts, prepend=-1))
    parts = [f"n = {counts[start]} from {axis} {x[start]:g}" for start in starts[:_MAX_CHANGES]]
    more = len(starts) - len(parts)
    return ", ".join(parts) + (f", and {more} more changes" if more else "")


def _named_runs(ids: Sequence[str]) -> str:
    return f"run{'s' if len(ids) > 1 else ''} {abbreviated(ids, 8, ' and {} more')}"


# ---------------------------------------------------------------------- the cache


# What a curve takes beside its arrays, roughly.
_OVERHEAD_BYTES = 1_000


@dataclasses.dataclass(frozen=True)
class ThinCurve:
    """A thinned curve, and of all its points the numbers that are not finite and that are not above 0."""

    curve: Curve
    num_not_finite: int
    num_below: int
    is_any_above: bool


class CurveCache:
    """A cache of the most recently used curves, up to a size in memory; threads may share it."""

    def __init__(self, max_bytes: int = 16 * 2**20) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._curves: dict[Hashable, ThinCurve] = {}
        self._lock = threading.Lock()

    def keys(
        self, runs: Sequence[Run], quantity: Quantity, how: Hashable, placed: Sequence[str] = ()
    ) -> list[Hashable | None]:
        """Return cache keys of the runs' curves, which change with the points; None if these may change unnoticed.

        `placed` are the metrics that place the points.
        """
        versions = zip(*(points_versions(runs, name) for name in (*quantity.names, *placed)), strict=True)
        return [
            None if None in version else (run.store.where, run.id, str(run.start_time), quantity.text, how, version)
            for run, version in zip(runs, versions, strict=True)
        ]

    def get(self, key: Hashable | None) -> ThinCurve | None:
        with self._lock:
            curve = self._curves.pop(key, None)
            if curve is not None:
                self._curves[key] = curve  # the last one to be dropped
            return curve

    def keep(self, key: Hashable | None, curve: ThinCurve) -> None:
        """Cache a curve unless its key is None, and drop the least recently used ones."""
        if key is None:
            return
        with self._lock:
            if key not in self._curves:
                self._num_bytes += _size(curve)
            self._curves[key] = curve
            while self._num_bytes > self._max_bytes:
                oldest = next(iter(self._curves))
                self._num_bytes -= _size(self._curves.pop(oldest))


def _size(curve: ThinCurve) -> int:
    arrays = (value for value in vars(curve.curve).values() if isinstance(value, np.ndarray))
    return _OVERHEAD_BYTES + sum(array.nbytes for array in arrays)
