"""Contents of a plot of past runs: a panel for every metric, a curve for every run or the mean of every group."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from runs.comparison.curves import Curve, curve_of, mean_curve, smooth, thin
from runs.comparison.grouping import differences_within, group_runs
from runs.drawing.curve import Panel, panelled
from runs.errors import PlotError
from runs.stores.prefetching import each_series, prefetch
from runs.stores.run import Run
from runs.stores.settings import run_labels

if TYPE_CHECKING:
    from observers.record.points.points import Series

__all__ = ["Panel", "View", "make_panels"]

# Changes of n that are named of each mean.
_MAX_CHANGES = 4
_X_LABELS = {"time": "seconds since the start", "wall": "time (UTC)"}


@dataclasses.dataclass(frozen=True)
class View:
    """Options of a plot.

    Attributes:
        by: Fields that make groups; each is drawn as its mean. Of none, every run is drawn.
        over: Fields of a repetition; see `runs.comparison.grouping`.
        x: `step`, `epoch`, `time` or `wall`; see `runs.comparison.curves.curve_of`.
        smoothing: Weight of what came before; see `runs.comparison.curves.smooth`.
        band: `interval`, `range` or `none`, around means.
        confidence: Of the interval.
        log_y: Logarithmic values; what is not above 0 is a gap.
        num_points: At most as many are drawn of each curve, and a few beside the range.
        between: The range of positions that is drawn; None for where a curve begins or ends.
    """

    by: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    x: str = "step"
    smoothing: float = 0.0
    band: str = "interval"
    confidence: float = 0.95
    log_y: bool = False
    num_points: int = 2000
    between: tuple[float | None, float | None] = (None, None)


def make_panels(runs: Sequence[Run], metrics: Sequence[str], view: View) -> list[Panel]:
    """Return a panel for every metric; the losses of training and validation, and the like, share one.

    Args:
        runs: At least one.
        metrics: At least one.
        view: The options.

    Raises:
        PlotError: If no run has a metric, nothing can be drawn logarithmically, or the view makes no sense.
        ComparisonError: If no run has a field of the view.
        StoreError: If a run cannot be read.
    """
    runs = [run.listed() for run in runs]
    if not runs:
        raise PlotError("there are no runs to plot; see which there are with: python -m runs ls")
    if not view.by and view.over:
        raise PlotError("--over: expected --by too, the fields that define the groups whose means are drawn")
    return [_panel(title, parts, runs, view) for title, parts in panelled(metrics).items()]


def _panel(title: str, metrics: Sequence[str], runs: Sequence[Run], view: View) -> Panel:
    prefetch(runs, ["metrics", "status", "start_time"])
    having = {metric: _having(runs, metric) for metric in metrics}
    # Of all runs, so that one is called the same in every panel.
    labels = {} if view.by else run_labels(runs)
    curves: list[Curve] = []
    notes: list[str] = []
    for metric, found in having.items():
        finish = _Finishing(view)
        drawn, said = _means(found, metric, view, finish) if view.by else _singles(found, metric, view, labels, finish)
        there = set(found)
        lacking = [run.id for run in runs if run not in there]
        if lacking:
            said.append(f"without {metric}: {_listed('run', lacking)}")
        said += finish.notes(metric)
        if len(having) > 1:
            part = metric.removesuffix(f"/{title}")
            drawn = [
                dataclasses.replace(curve, label=part if len(drawn) == 1 else f"{part}, {curve.label}")
                for curve in drawn
            ]
        curves += drawn
        notes += [note for note in said if note not in notes]
    return Panel(title, tuple(curves), _X_LABELS.get(view.x, view.x), tuple(notes), view.log_y, view.x == "wall")


def _having(runs: Sequence[Run], metric: str) -> list[Run]:
    having = [run for run in runs if metric in run.metrics]
    if not having:
        names = {name for run in runs[:20] for name in run.metrics}
        there = sorted(names, key=lambda name: (name.startswith("system/"), name))
        raise PlotError(f"no run has the metric {metric!r}; there are: {', '.join(there) or 'none'}")
    return having


def _run_curve(run: Run, series: Series, label: str, view: View) -> Curve:
    """Return the curve of one run as a view shows it, of all of its points.

    Raises:
        PlotError: If the view makes no sense, or wants epochs of a run that tells none.
        StoreError: If the run cannot be read.
    """
    epochs = run.epochs_at(series.steps) if view.x == "epoch" else None
    if view.x == "epoch" and epochs is None:
        raise PlotError(f"run {run.id}: its record has no epochs; log a metric named epoch, or draw over steps")
    started = run.start_time
    start_s = started.timestamp() if started else 0.0
    return smooth(curve_of(series, label, view.x, epochs=epochs, start_s=start_s), view.smoothing)


class _Finishing:
    """Takes whole curves, one by one, counts their gaps, and gives back what is drawn of them."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._num_odd = self._num_below = 0
        self._is_any_above = False

    def __call__(self, curve: Curve) -> Curve:
        values = curve.y if curve.raw is None else curve.raw
        is_finite = np.isfinite(values)
        self._num_odd += int((~is_finite).sum())
        if self._view.log_y:
            self._num_below += int((values <= 0).sum())
            self._is_any_above |= bool((values[is_finite] > 0).any())
        return thin(curve, self._view.num_points, *self._view.between)

    def notes(self, metric: str) -> list[str]:
        """Return what cannot be seen of the curves.

        Raises:
            PlotError: If nothing of them can be drawn logarithmically.
        """
        notes = [f"gaps: {self._num_odd} NaN or infinite"] if self._num_odd else []
        if self._view.log_y and not self._is_any_above:
            raise PlotError(f"{metric}: no value is above 0, as a logarithmic axis needs; leave out --log-y")
        return [*notes, f"gaps: {self._num_below} not above 0"] if self._num_below else notes


def _singles(
    runs: Sequence[Run], metric: str, view: View, labels: dict[Run, str], finish: _Finishing
) -> tuple[list[Curve], list[str]]:
    curves = [
        dataclasses.replace(finish(_run_curve(run, series, labels[run], view)), key=run.id)
        for run, series in each_series(runs, metric)
    ]
    return curves, [f"smoothing {view.smoothing:g}"] if view.smoothing else []


def _means(runs: Sequence[Run], metric: str, view: View, finish: _Finishing) -> tuple[list[Curve], list[str]]:
    prefetch(runs, ["config"])
    groups, excluded = group_runs(runs, view.by, view.over)
    # In the order of the groups, so that those of one group at a time are held.
    ordered = [run for group in groups for same in group.repetitions.values() for run in same]
    found = (_run_curve(run, series, "", view) for run, series in each_series(ordered, metric))
    curves: list[Curve] = []
    varies = False
    changes: list[str] = []
    cautions: list[str] = []
    for group in groups:
        repetitions = []
        for same in group.repetitions.values():
            parts = list(itertools.islice(found, len(same)))
            # Runs of one seed count once.
            repetitions.append(parts[0] if len(parts) == 1 else mean_curve(parts, band="none"))
        if not repetitions:
            continue
        curve = mean_curve(repetitions, group.label, view.band, view.confidence)
        counts = np.zeros(0, int) if curve.counts is None else curve.counts
        least, most = int(counts.min(initial=len(repetitions))), int(counts.max(initial=0))
        count = f"n = {most}" if least == most else f"n = {least} to {most}"
        curves.append(dataclasses.replace(finish(curve), label=f"{group.label} ({count})", key=group.label))
        varies = varies or least < most
        if least < most and view.x != "wall":
            changes.append(f"{group.label}: {_changes(curve.x, counts, view.x)}")
        mixed = differences_within(group, (*view.by, *view.over))
        if mixed:
            cautions.append(f"caution: {group.label}: its runs differ in {mixed} too")
    if not curves:
        raise PlotError(f"none of the {len(runs)} runs has {' and '.join(view.over)}")
    bands = {
        "interval": f"mean, and its {view.confidence * 100:g}% interval at each point (Student's t; none below n = 2)",
        "range": "mean, and the range from the least to the greatest run",
        "none": "mean",
    }
    smoothing = f" of curves smoothed with {view.smoothing:g}" if view.smoothing else ""
    notes = [f"{bands[view.band]}{smoothing}"]
    if varies:
        notes += ["where n varies, not every run has every point", *changes]
    reasons: dict[str, list[str]] = {}
    for entry in excluded:
        reason = "not readable as a whole" if entry.run.problem else entry.reason
        reasons.setdefault(reason, []).append(entry.run.id)
    for reason, ids in reasons.items():
        lacking = f"without {reason.removeprefix('has no ')}" if reason.startswith("has no ") else f"left out: {reason}"
        notes.append(f"{lacking}: {_listed('run', ids)}")
    return curves, [*notes, *cautions]


def _changes(x: np.ndarray, counts: np.ndarray, axis: str) -> str:
    """Return in words how many runs are behind a mean, and where that changes."""
    starts = np.flatnonzero(np.diff(counts, prepend=-1))
    said = [f"n = {counts[start]} from {axis} {x[start]:g}" for start in starts[:_MAX_CHANGES]]
    more = len(starts) - len(said)
    return ", ".join(said) + (f", and {more} more changes" if more else "")


def _listed(what: str, ids: Sequence[str]) -> str:
    more = f" and {len(ids) - 8} more" if len(ids) > 8 else ""
    return f"{what}{'s' if len(ids) > 1 else ''} {', '.join(ids[:8])}{more}"
