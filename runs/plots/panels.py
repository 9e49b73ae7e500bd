"""Contents of a plot of past runs: a panel for every metric, a curve for every run or the mean of every group."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from runs.comparison.grouping import differing, group_runs, show
from runs.errors import PlotError
from runs.plots.curves import Curve, curve_of, mean_curve, smooth, thin
from runs.stores.run import Run

__all__ = ["Panel", "View", "make_panels"]

_MAX_LABEL, _MAX_NAMES = 60, 4


@dataclasses.dataclass(frozen=True)
class View:
    """Options of a plot.

    Attributes:
        by: Fields that make groups; each is drawn as its mean. Of none, every run is drawn.
        over: Fields of a repetition; see `runs.comparison.grouping`.
        x: `step` or `time`.
        smoothing: Weight of what came before; see `runs.plots.curves.smooth`.
        band: `interval`, `range` or `none`, around means.
        confidence: Of the interval.
        log_y: Logarithmic values; what is not above 0 is a gap.
        num_points: At most as many are drawn of each curve.
    """

    by: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    x: str = "step"
    smoothing: float = 0.0
    band: str = "interval"
    confidence: float = 0.95
    log_y: bool = False
    num_points: int = 2000


@dataclasses.dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        metric: What is drawn.
        curves: At least one.
        x_label: Of the axis, with the unit.
        notes: What cannot be seen: runs without the metric, the kind of band; a sentence each.
        log_y: Whether values are drawn logarithmically.
    """

    metric: str
    curves: tuple[Curve, ...]
    x_label: str
    notes: tuple[str, ...]
    log_y: bool = False


def make_panels(runs: Sequence[Run], metrics: Sequence[str], view: View) -> list[Panel]:
    """Return a panel for every metric.

    Args:
        runs: At least one.
        metrics: At least one.
        view: The options.

    Raises:
        PlotError: If no run has a metric, nothing can be drawn logarithmically, or the view makes no sense.
        ComparisonError: If no run has a field of the view.
        StoreError: If a run cannot be read.
    """
    if not runs:
        raise PlotError("there are no runs to plot; see which there are with: python -m runs ls")
    if not view.by and view.over:
        raise PlotError("--over: expected --by too, the fields that make the groups whose means are drawn")
    panels = []
    for metric in metrics:
        having = [run for run in runs if metric in run.metrics]
        if not having:
            names = {name for run in runs[:20] for name in run.metrics}
            there = sorted(names, key=lambda name: (name.startswith("system/"), name))
            raise PlotError(f"no run has the metric {metric!r}; there are: {', '.join(there) or 'none'}")
        curves, notes = _means(having, metric, view) if view.by else _singles(having, metric, view)
        lacking = [run.id for run in runs if run not in having]
        if lacking:
            notes.append(f"without {metric}: {_listed('run', lacking)}")
        notes += _gap_notes(metric, curves, view.log_y)
        x_label = "step" if view.x == "step" else "seconds since the start"
        panels.append(
            Panel(metric, tuple(thin(curve, view.num_points) for curve in curves), x_label, tuple(notes), view.log_y)
        )
    return panels


def _singles(runs: Sequence[Run], metric: str, view: View) -> tuple[list[Curve], list[str]]:
    labels = run_labels(runs)
    curves = [smooth(curve_of(run.metric(metric), labels[run], view.x), view.smoothing) for run in runs]
    return curves, [f"smoothing {view.smoothing:g}"] if view.smoothing else []


def _means(runs: Sequence[Run], metric: str, view: View) -> tuple[list[Curve], list[str]]:
    groups, excluded = group_runs(runs, view.by, view.over)
    curves: list[Curve] = []
    varies = False
    for group in groups:
        repetitions = []
        for same in group.repetitions.values():
            parts = [smooth(curve_of(run.metric(metric), "", view.x), view.smoothing) for run in same]
            # Runs of one seed count once.
            repetitions.append(parts[0] if len(parts) == 1 else mean_curve(parts, band="none"))
        if not repetitions:
            continue
        curve = mean_curve(repetitions, group.label, view.band, view.confidence)
        counts = np.zeros(0, int) if curve.counts is None else curve.counts
        least, most = int(counts.min(initial=len(repetitions))), int(counts.max(initial=0))
        count = f"n = {most}" if least == most else f"n = {least} to {most}"
        curves.append(dataclasses.replace(curve, label=f"{group.label} ({count})"))
        varies = varies or least < most
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
        notes.append("where n varies, not every run has every point")
    if excluded:
        notes.append(f"without {' or '.join(view.over)}: {_listed('run', [entry.run.id for entry in excluded])}")
    return curves, notes


def run_labels(runs: Sequence[Run]) -> dict[Run, str]:
    """Return for every run its id and what makes it differ from the others."""
    names = differing(runs)[:_MAX_NAMES] if len(runs) > 1 else []
    labels = {}
    for run in runs:
        text = ", ".join(f"{name}={show(run[f'config.{name}'])}" for name in names)
        text = f"run {run.id}: {text}" if text else f"run {run.id}"
        labels[run] = text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…"
    return labels


def _gap_notes(metric: str, curves: Sequence[Curve], log_y: bool) -> list[str]:
    values = np.concatenate([curve.y if curve.raw is None else curve.raw for curve in curves])
    num_odd = int((~np.isfinite(values)).sum())
    notes = [f"gaps: {num_odd} NaN or infinite"] if num_odd else []
    if log_y:
        num_below = int((values <= 0).sum())
        if not (values[np.isfinite(values)] > 0).any():
            raise PlotError(f"{metric}: no value is above 0, as a logarithmic axis needs; leave out --log-y")
        if num_below:
            notes.append(f"gaps: {num_below} not above 0")
    return notes


def _listed(what: str, ids: Sequence[str]) -> str:
    more = f" and {len(ids) - 8} more" if len(ids) > 8 else ""
    return f"{what}{'s' if len(ids) > 1 else ''} {', '.join(ids[:8])}{more}"
