"""The plots of a sweep as PNG files. The same study gives the same bytes with the same matplotlib.

Optuna's own plots for matplotlib are experimental: they label each trial, cut labels off, and interpolate between
categories, where nothing is.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sacristan.runs.drawing.plots import COLORS, FORMATS, house_style, printable
from sacristan.runs.sweeps.views.study_view import StudyView, most_important

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_BLUE, _ORANGE = COLORS[:2]
_GREY = "#BBBBBB"
_WIDTH = 10.0


def make_pictures(view: StudyView, title: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each picture that the study has values for, such as `history`, and its PNG content."""
    with house_style():
        for name, (heading, draw) in _PICTURES.items():
            figure = draw(view)
            if figure is None:
                continue
            figure.suptitle(printable(f"{title}: {heading}"))
            stream = io.BytesIO()
            figure.savefig(stream, format="png", **FORMATS[".png"])
            yield name, stream.getvalue()


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=130)


# ---------------------------------------------------------------------- plots


def _history(view: StudyView) -> Any:
    figure = _figure(_WIDTH, 3.6 * len(view.metrics))
    numbers = np.array([trial.number for trial in view.complete])
    feasible = np.array([_is_feasible(trial) for trial in view.complete])
    for place, axes in enumerate(figure.subplots(len(view.metrics), squeeze=False)[:, 0]):
        values = _values(view, place)
        axes.plot(numbers[feasible], values[feasible], "o", color=_BLUE, alpha=0.6, label="trial")
        if not feasible.all():
            axes.plot(numbers[~feasible], values[~feasible], "x", color=_GREY, label="breaks a constraint")
        if feasible.any():
            best = (np.maximum if _is_maximized(view, place) else np.minimum).accumulate(values[feasible])
            axes.step(numbers[feasible], best, where="post", color=_ORANGE, linewidth=1.8, label="best so far")
        if values.min() > 0 and values.max() > 100 * values.min():
            axes.set_yscale("log")
        axes.set_ylabel(printable(view.metrics[place]))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="best")
    axes.set_xlabel("trial")
    return figure


def _pareto(view: StudyView) -> Any:
    if len(view.metrics) < 2:
        return None
    front = {trial.number for trial in view.study.best_trials}
    is_front = np.array([trial.number in front for trial in view.complete])
    feasible = np.array([_is_feasible(trial) for trial in view.complete])
    groups = (
        (~is_front & feasible, "o", _BLUE, "dominated"),
        (~feasible, "x", _GREY, "breaks a constraint"),
        (is_front, "o", _ORANGE, "Pareto front"),
    )
    pairs = list(itertools.combinations(range(len(view.metrics)), 2))
    figure = _figure(max(5.0 * len(pairs), 6.0), 4.5)
    for (first, second), axes in zip(pairs, figure.subplots(1, len(pairs), squeeze=False)[0], strict=True):
        x, y = _values(view, first), _values(view, second)
        for members, mark, color, label in groups:
            if members.any():
                axes.plot(x[members], y[members], mark, color=color, label=label)
        axes.set_xlabel(printable(view.metrics[first]))
        axes.set_ylabel(printable(view.metrics[second]))
        axes.legend(loc="best")
    return figure


def _parallel(view: StudyView) -> Any:
    if not view.parameters:
        return None
    from matplotlib.collections import LineCollection

    scales = [_Scale(view, name) for name in view.parameters]
    rows = np.array([[scale.place(trial) for scale in scales] for trial in view.complete])
    figure = _figure(max(_WIDTH, 1.8 * len(scales) + 3), 5.0)
    axes = figure.subplots()
    # The best trials on top.
    order = np.argsort(_values(view, 0) * (1 if _is_maximized(view, 0) else -1))
    columns = np.arange(len(scales))
    lines = LineCollection(
        [np.column_stack([columns, row]) for row in rows[order]],
        cmap=_color_map(view, 0),
        linewidths=1.2,
        alpha=0.75,
    )
    lines.set_array(_values(view, 0)[order])
    axes.add_collection(lines)
    # A line ends where its trial lacks a parameter; a trial with one parameter is a point.
    axes.scatter(np.tile(columns, (len(rows), 1))[order], rows[order], s=8, color=_GREY, zorder=1)
    for column, scale in zip(columns, scales, strict=True):
        axes.axvline(column, color="#888888", linewidth=0.8, zorder=0)
        for place, label in scale.ticks():
            box = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1}
            axes.text(column + 0.03, place, printable(label), fontsize=8, va="center", bbox=box)
    names = [printable(name) for name in view.parameters]
    axes.set_xticks(columns, names, rotation=15, ha="right")
    axes.set_yticks([])
    axes.set_xlim(-0.3, len(scales) - 0.5)
    axes.set_ylim(-0.06, 1.06)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    figure.colorbar(lines, ax=axes, pad=0.02).set_label(printable(view.metrics[0]))
    return figure


def _importances(view: StudyView) -> Any:
    shown = [place for place in range(len(view.metrics)) if view.importances[place]]
    if not shown:
        return None
    figure = _figure(_WIDTH, (0.5 * len(view.common) + 1.4) * len(shown))
    for place, axes in zip(shown, figure.subplots(len(shown), squeeze=False)[:, 0], strict=True):
        methods = view.importances[place]
        names = list(next(iter(methods.values())))[::-1]
        for number, (method, of) in enumerate(methods.items()):
            heights = np.arange(len(names)) + 0.2 - 0.4 * number
            bars = axes.barh(heights, [of[name] for name in names], 0.4, color=COLORS[number], label=method)
            axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        axes.set_yticks(np.arange(len(names)), [printable(name) for name in names])
        axes.set_xlabel(printable(f"share of the variation of {view.metrics[place]}"))
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.08)
        axes.legend(loc="lower right")
    return figure


def _slices(view: StudyView) -> Any:
    if not view.parameters:
        return None
    columns = min(len(view.parameters), 4)
    rows = math.ceil(len(view.parameters) / columns)
    figure = _figure(max(3.2 * columns, 5.0), 3.0 * rows * len(view.metrics))
    cells = figure.subplots(rows * len(view.metrics), columns, squeeze=False)
    for place in range(len(view.metrics)):
        of_metric = cells[place * rows : (place + 1) * rows].flat
        for axes, name in itertools.zip_longest(of_metric, view.parameters):
            if axes is not cells[place * rows, 0]:
                axes.sharey(cells[place * rows, 0])
            if name is None:
                axes.set_axis_off()
            else:
                dots = _slice(axes, view, place, name)
    figure.colorbar(dots, ax=figure.axes, pad=0.01, aspect=40).set_label("trial")
    return figure


def _slice(axes: Any, view: StudyView, place: int, name: str) -> Any:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    scale = _Scale(view, name)
    having = [number for number, trial in enumerate(view.complete) if name in trial.params]
    trials = np.array([trial.number for trial in view.complete])
    x = np.array([scale.number(trial) for trial in view.complete])
    pale_to_dark = ListedColormap(colormaps["Blues"](np.linspace(0.2, 1, 256)))
    dots = axes.scatter(
        x[having],
        _values(view, place)[having],
        c=trials[having],
        cmap=pale_to_dark,
        vmin=0,
        vmax=max(trials[-1], 1),
        s=18,
        edgecolors="#666666",
        linewidths=0.4,
    )
    scale.label(axes.xaxis)
    axes.set_xlabel(printable(name))
    axes.set_ylabel(printable(view.metrics[place]))
    return dots


def _contours(view: StudyView) -> Any:
    pairs = list(itertools.combinations(most_important(view, 0), 2))
    if not pairs:
        return None
    columns = min(len(pairs), 3)
    rows = math.ceil(len(pairs) / columns)
    figure = _figure(max(4.4 * columns, 6.0), 3.8 * rows)
    for axes, pair in itertools.zip_longest(figure.subplots(rows, columns, squeeze=False).flat, pairs):
        if pair is None:
            axes.set_axis_off()
        else:
            dots = _contour(axes, view, pair)
    bar = figure.colorbar(dots, ax=figure.axes, pad=0.01, aspect=40)
    bar.set_label(printable(view.metrics[0]))
    return figure


def _contour(axes: Any, view: StudyView, pair: Sequence[str]) -> Any:
    first, second = (_Scale(view, name) for name in pair)
    x, y = (np.array([scale.number(trial) for trial in view.complete]) for scale in (first, second))
    first.label(axes.xaxis)
    second.label(axes.yaxis)
    axes.set_xlabel(printable(first.name))
    axes.set_ylabel(printable(second.name))
    values = _values(view, 0)
    colors = {"cmap": _color_map(view, 0), "vmin": values.min(), "vmax": values.max()}
    if first.is_ordered and second.is_ordered:  # there is nothing between adam and sgd
        _fill(axes, (first, second), x, y, values, colors)
    return axes.scatter(x, y, c=values, s=16, edgecolors="white", linewidths=0.6, zorder=3, **colors)


def _fill(axes: Any, scales: Sequence[_Scale], x: np.ndarray, y: np.ndarray, values: np.ndarray, colors: Any) -> None:
    """Fill between the points, with triangles on the scales shown; points on a line have none."""
    from matplotlib.tri import Triangulation

    placed = [np.log10(place) if scale.is_log else place for scale, place in zip(scales, (x, y), strict=True)]
    axes.margins(0.06)
    try:
        triangles = Triangulation(*(_unit(place) for place in placed)).triangles
        filled = axes.tricontourf(Triangulation(x, y, triangles), values, levels=12, alpha=0.55, **colors)
        filled.sticky_edges.x.clear()
        filled.sticky_edges.y.clear()
    except (RuntimeError, ValueError):
        return


def _intermediate(view: StudyView) -> Any:
    from optuna.trial import TrialState

    trials = [trial for trial in view.study.get_trials(deepcopy=False) if trial.intermediate_values]
    if not trials or len(view.metrics) > 1:
        return None
    figure = _figure(_WIDTH, 4.6)
    axes = figure.subplots()
    looks = {TrialState.COMPLETE: (_BLUE, "-", "complete"), TrialState.PRUNED: (_ORANGE, "--", "pruned")}
    labelled = set()
    for trial in trials:
        color, dash, label = looks.get(trial.state, (_GREY, ":", "running or failed"))
        steps, reports = zip(*sorted(trial.intermediate_values.items()), strict=True)
        values = np.array(reports, float)
        axes.plot(
            steps,
            np.where(np.isfinite(values), values, np.nan),
            dash,
            marker="" if len(steps) > 1 else "o",
            markersize=4,
            color=color,
            alpha=0.6,
            linewidth=1.1,
            label=None if label in labelled else label,
        )
        labelled.add(label)
    axes.set_xlabel("step")
    axes.set_ylabel(printable(view.metrics[0]))
    axes.legend(loc="best")
    return figure


_PICTURES: dict[str, tuple[str, Callable[[StudyView], Any]]] = {
    "history": ("history", _history),
    "pareto": ("Pareto front", _pareto),
    "parallel": ("parallel coordinates", _parallel),
    "importances": ("importances", _importances),
    "slices": ("slices", _slices),
    "contours": ("contours", _contours),
    "intermediate": ("intermediate values", _intermediate),
}


# ---------------------------------------------------------------------- values and scales


def _values(view: StudyView, place: int) -> np.ndarray:
    return np.array([trial.values[place] for trial in view.complete], float)


def _is_maximized(view: StudyView, place: int) -> bool:
    return view.study.directions[place].name == "MAXIMIZE"


def _color_map(view: StudyView, place: int) -> str:
    """Return a colour map on which good values are dark."""
    return "viridis_r" if _is_maximized(view, place) else "viridis"


def _is_feasible(trial: FrozenTrial) -> bool:
    return all(value <= 0 for value in trial.constraints.values())


def _unit(values: np.ndarray) -> np.ndarray:
    return (values - values.min()) / (np.ptp(values) or 1.0)


class _Scale:
    """The axis of a parameter: numbers, logarithmic if they were searched so, or categories side by side."""

    def __init__(self, view: StudyView, name: str) -> None:
        from optuna.distributions import CategoricalDistribution

        self.name = name
        having = [trial for trial in view.complete if name in trial.params]
        distribution = having[0].distributions[name]
        self.categories: list[Any] = []
        if isinstance(distribution, CategoricalDistribution):
            tried = [trial.params[name] for trial in having]
            self.categories = [choice for choice in distribution.choices if choice in tried]
        self.is_ordered = all(isinstance(value, int | float) for value in self.categories)
        self.is_log = bool(getattr(distribution, "log", False))
        numbers = [self.number(trial) for trial in having]
        self._low, self._high = min(numbers), max(numbers)

    def number(self, trial: FrozenTrial) -> float:
        """Return a trial's place on the axis; NaN if it lacks the parameter."""
        if self.name not in trial.params:
            return math.nan
        value = trial.params[self.name]
        return float(self.categories.index(value)) if self.categories else float(value)

    def place(self, trial: FrozenTrial) -> float:
        """Return a trial's place from 0 to 1."""
        return self._unit(self.number(trial))

    def _unit(self, number: float) -> float:
        low, high = self._low, self._high
        if math.isnan(number):
            return number
        if self.is_log:
            low, high, number = math.log(low), math.log(high), math.log(number)
        return (number - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[tuple[float, str]]:
        if self.categories:
            return [(self._unit(number), str(value)) for number, value in enumerate(self.categories)]
        middle = math.sqrt(self._low * self._high) if self.is_log else (self._low + self._high) / 2
        return [(self._unit(number), f"{number:.3g}") for number in dict.fromkeys((self._low, middle, self._high))]

    def label(self, axis: Any) -> None:
        """Give an axis of matplotlib this scale."""
        if self.categories:
            axis.set_ticks(range(len(self.categories)), [printable(str(value)) for value in self.categories])
        elif self.is_log:
            getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
