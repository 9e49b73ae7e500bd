"""Curves as SVG, and runs as HTML for notebooks: self-contained, without script or style sheet, everything escaped."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sacristan.observers.record.points import Series
from sacristan.runs.drawing import Markup, element, table
from sacristan.runs.drawing.curve import (
    COLORS,
    Curve,
    curve_of,
    limits,
    log_ticks,
    panelled,
    pieces,
    scaled,
    thin,
    ticks,
    time_ticks,
)
from sacristan.runs.errors import RunsError
from sacristan.runs.query import dotted
from sacristan.runs.query.texts import MISSING, count_text, duration_text, short_text, time_text

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 18, 26, 36
_LINE = 16  # pixels of a line of the legend
_MOST_IN_LEGEND = 12
_DASHES = ("", "6 3", "2 2", "8 3 2 3")
_SPARKLINE = 120, 24  # width and height in pixels
# A part of a curve that is smaller than this, such as a point between two gaps, is drawn as a dot, in pixels.
_LEAST, _DOT = 1.5, 4.0
_FONT = "font:12px system-ui,sans-serif"


def color_of(number: int) -> str:
    """Return the colour of a curve by its position, repeating; black becomes the text's colour, for dark pages."""
    color = COLORS[number % len(COLORS)]
    return "currentColor" if color == "#000000" else color


def sparkline(curve: Curve) -> Markup:
    """Draw a curve as small as a word, with its label as the accessible name; empty if no value is finite."""
    width, height = _SPARKLINE
    drawn = thin(curve, 2 * width)
    frame = _Frame.of([drawn], "", False, (2.0, width - 2.0), (height - 2.0, 2.0))
    if frame is None:
        return Markup("")
    paths = frame.paths(drawn.x, drawn.y, stroke=color_of(0), stroke_width=1.3)
    label = f"{curve.label}: {len(curve.x)} points"
    return element("svg", *paths, width=width, height=height, role="img", aria_label=label)


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    x_label: str = "step",
    notes: Sequence[str] = (),
    log_y: bool = False,
    is_time: bool = False,
    width: int = 460,
    height: int = 240,
) -> Markup:
    """Draw curves over axes, with a legend and notes below them.

    The size in pixels is that of the axes; the legend adds to the height. Of long curves, only the points that a plot
    of this size shows are drawn. With `log_y`, values that are not above 0 are gaps; with `is_time`, positions are
    seconds since 1970.
    """
    drawn = [thin(curve, 3 * width, log_y=log_y) for curve in curves]
    frame = _Frame.of(drawn, x_label, log_y, (_LEFT, width - _RIGHT), (height - _BOTTOM, _TOP))
    parts = [_text(title, _LEFT, 15, weight=600)]
    if frame is None:
        parts.append(_text("no finite values", _LEFT, height / 2))
    else:
        parts += [*frame.axes(is_time), *frame.lines(drawn)]
    rows = _rows(curves, notes, width)
    below = [part for line, row in enumerate(rows) for part in _legend_row(*row, height + _LINE * line + 8)]
    name = f"{title} over {x_label}: {len(curves)} curve{'s' * (len(curves) != 1)}"
    bottom = height + _LINE * len(rows) + 6
    return element(
        "svg",
        element("title", name),
        *parts,
        *below,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {bottom}",
        width=width,
        height=bottom,
        role="img",
        style=f"{_FONT};max-width:100%;height:auto;vertical-align:top",
    )


@dataclasses.dataclass(frozen=True)
class _Frame:
    """The place of the axes: limits of the data, and pixels of the edges."""

    x: tuple[float, float]
    y: tuple[float, float]
    left: float
    right: float
    bottom: float
    top: float
    x_label: str
    log_y: bool

    @classmethod
    def of(
        cls,
        curves: Sequence[Curve],
        x_label: str,
        log_y: bool,
        across: tuple[float, float],
        down: tuple[float, float],
    ) -> _Frame | None:
        """Return the frame that fits curves; None if no value is finite."""
        x = [curve.x[np.isfinite(scaled(curve.y, log_y))] for curve in curves]
        if not any(map(len, x)):
            return None
        edges = [edge for curve in curves for edge in (curve.low, curve.high, curve.raw) if edge is not None]
        y = np.concatenate([scaled(values, log_y) for values in (*(curve.y for curve in curves), *edges)])
        y_limits = limits(y[np.isfinite(y)], margin=0.08)
        return cls(limits(np.concatenate(x)), y_limits, *across, *down, x_label, log_y)

    def at(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        across = self.left + (x - self.x[0]) / (self.x[1] - self.x[0]) * (self.right - self.left)
        down = self.bottom + (y - self.y[0]) / (self.y[1] - self.y[0]) * (self.top - self.bottom)
        return across, down

    def paths(self, x: np.ndarray, y: np.ndarray, **attributes: Any) -> Iterator[Markup]:
        """Yield the path of a line, broken at gaps, and the dots for pieces too small to show as a line."""
        across, down = self.at(x, scaled(y, self.log_y))
        lines, dots = [], []
        for piece in pieces(down):
            places = [f"{left:.1f} {top:.1f}" for left, top in zip(across[piece], down[piece], strict=True)]
            if max(np.ptp(across[piece]), np.ptp(down[piece])) < _LEAST:
                dots.append(f"M{places[0]}h0")
            else:
                lines.append(f"M{'L'.join(places)}")
        if lines:
            yield element("path", d="".join(lines), fill="none", stroke_linejoin="round", **attributes)
        if dots:
            round_dots = {"stroke_linecap": "round", "stroke_width": _DOT, "stroke_dasharray": None}
            yield element("path", d="".join(dots), fill="none", **{**attributes, **round_dots})

    def lines(self, curves: Sequence[Curve]) -> Iterator[Markup]:
        """Yield the band of each curve, its values before smoothing, and its line."""
        for number, curve in enumerate(curves):
            color = color_of(number)
            if curve.low is not None and curve.high is not None:
                yield element("path", d=self._band(curve), fill=color, fill_opacity=0.18)
            if curve.raw is not None:
                yield from self.paths(curve.x, curve.raw, stroke=color, stroke_opacity=0.25)
            dash = _DASHES[number // len(COLORS) % len(_DASHES)] or None
            if at := curve.num_inherited:
                before = {"stroke": color, "stroke_dasharray": "2 3", "class_": "inherited"}
                yield from self.paths(curve.x[: at + 1], curve.y[: at + 1], **before)
            line = {"stroke": color, "stroke_width": 1.6, "stroke_dasharray": dash}
            yield from self.paths(curve.x[at:], curve.y[at:], **line)

    def _band(self, curve: Curve) -> str:
        assert curve.low is not None
        assert curve.high is not None
        # On a logarithmic axis a band reaches the edge where it goes below 0.
        low = np.maximum(np.nan_to_num(scaled(curve.low, self.log_y), nan=self.y[0]), self.y[0])
        high = scaled(curve.high, self.log_y)
        outlines = []
        for piece in pieces(np.where(np.isfinite(curve.low), high, np.nan)):
            there, back = self.at(curve.x[piece], high[piece]), self.at(curve.x[piece], low[piece])
            points = [*zip(*there, strict=True), *reversed(list(zip(*back, strict=True)))]
            if np.ptp(there[0]) < _LEAST:  # too narrow to be seen
                (left, top), (_, bottom) = points[0], points[-1]
                left, right = left - _DOT / 2, left + _DOT / 2
                points = [(left, top), (right, top), (right, bottom), (left, bottom)]
            outlines.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z")
        return "".join(outlines)

    def axes(self, is_time: bool) -> Iterator[Markup]:
        for value, label in log_ticks(*self.y) if self.log_y else ticks(*self.y, 5):
            [top] = self.at(np.array([self.x[0]]), np.array([value]))[1]
            yield self._grid(self.left, top, self.right, top)
            yield _text(label, self.left - 6, top + 4, anchor="end", opacity=0.8)
        for value, label in time_ticks(*self.x, 5) if is_time else ticks(*self.x, 6):
            [left] = self.at(np.array([value]), np.array([self.y[0]]))[0]
            yield self._grid(left, self.bottom, left, self.bottom + 4)
            yield _text(label, left, self.bottom + 16, anchor="middle", opacity=0.8)
        yield self._grid(self.left, self.bottom, self.right, self.bottom, 0.6)
        yield _text(self.x_label, (self.left + self.right) / 2, self.bottom + 31, anchor="middle", opacity=0.8)

    def _grid(self, x1: float, y1: float, x2: float, y2: float, opacity: float = 0.18) -> Markup:
        ends = {key: f"{value:.1f}" for key, value in (("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2))}
        return element("line", **ends, stroke="currentColor", stroke_opacity=opacity)


def _text(text: str, x: float, y: float, *, anchor: str = "start", weight: int = 400, opacity: float = 1.0) -> Markup:
    style = {"text_anchor": anchor, "font_weight": weight, "opacity": opacity, "fill": "currentColor"}
    return element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", **style)


def _rows(curves: Sequence[Curve], notes: Sequence[str], width: int) -> list[tuple[str, int | None]]:
    """Return the lines below the axes as texts, with the number of the curve that a text labels."""
    labels = [(curve.label, number) for number, curve in enumerate(curves) if curve.label]
    rows: list[tuple[str, int | None]] = [*labels[:_MOST_IN_LEGEND]]
    if len(labels) > _MOST_IN_LEGEND:
        rows.append((f"and {len(labels) - _MOST_IN_LEGEND} more", None))
    return [*rows, *((line, None) for note in notes for line in textwrap.wrap(note, (width - _LEFT) // 6))]


def _legend_row(text: str, number: int | None, y: float) -> Iterator[Markup]:
    if number is None:
        yield _text(text, _LEFT, y + 4, opacity=0.7)
        return
    dash = _DASHES[number // len(COLORS) % len(_DASHES)] or None
    stroke = {"stroke": color_of(number), "stroke_width": 2.5, "stroke_dasharray": dash}
    yield element("path", d=f"M{_LEFT} {y:.0f}h18", fill="none", **stroke)
    yield _text(text, _LEFT + 24, y + 4)


_COLORS = {"COMPLETED": "#1a7f37", "RUNNING": "#0969da", "QUEUED": "#0969da", "FAILED": "#cf222e", "PRUNED": "#8250df"}
_OTHER_COLOR = "#9a6700"
_MOST_PANELS, _MOST_ROWS, _MOST_ENTRIES, _MOST_SETTINGS = 8, 20, 60, 5
_MOST_CHARACTERS = 80
# The metrics to show first, where runs have them.
_FIRST = ("val/loss", "train/loss", "loss")


class Shown(Protocol):
    """The part of `sacristan.runs.stores.run.Run` that is shown."""

    id: str
    problem: str | None

    @property
    def name(self) -> str: ...
    @property
    def command(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def metrics(self) -> list[str]: ...
    @property
    def summary(self) -> dict[str, dict[str, Any]]: ...
    @property
    def config(self) -> Any: ...
    @property
    def tags(self) -> list[str]: ...
    @property
    def note(self) -> str: ...

    def metric(self, name: str) -> Series: ...
    def get(self, name: str) -> Any: ...


def status_form(status: str) -> Markup:
    """Return a run's status with a dot in its colour; an empty one shows as `unknown`."""
    dot = element("span", "●", style=f"color:{_COLORS.get(status, _OTHER_COLOR)}", aria_hidden="true")
    return element("span", dot, f" {status or 'unknown'}", style="white-space:nowrap")


def run_form(run: Shown) -> str:
    """Show a run: its facts, curves, config and summary, or why it cannot be read; see `Run._repr_html_`."""
    try:
        parts = [*_run_parts(run)]
    except RunsError as error:
        parts = [element("p", f"run {run.id} cannot be shown: {error}")]
    return element("div", *parts, style="font-family:system-ui,sans-serif")


def _run_parts(run: Shown) -> Iterator[Markup]:
    yield element("h3", f"run {run.id}  {run.name}  {run.command}".rstrip())
    facts = [
        ("display name", run.get("display_name") or ""),
        ("status", status_form(run.status)),
        ("start", time_text(run.get("start_time"), exact=True)),
        ("duration", duration_text(run.get("duration"))),
        ("result", _short(run.get("result"), exact=True)),
        ("uid", run.get("uid") or ""),
        ("tags", ", ".join(run.tags)),
        ("note", run.note),
    ]
    yield table((), [fact for fact in facts if fact[1] not in ("", MISSING)])
    yield from _curves(run)
    config = [(name, _short(value, exact=True)) for name, value in dotted(run.config).items()]
    if config:
        yield _folded(f"config, {len(config)} {'entry' if len(config) == 1 else 'entries'}", ("entry", "value"), config)
    statistics = ("last", "min", "max", "count")
    rows = [(name, *(_short(summary.get(key)) for key in statistics)) for name, summary in run.summary.items()]
    if rows:
        yield _folded(count_text(len(rows), "metric"), ("metric", *statistics), rows, (1, 2, 3, 4))


def _folded(title: str, head: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[int] = ()) -> Markup:
    more = [element("p", f"and {len(rows) - _MOST_ENTRIES} more")] if len(rows) > _MOST_ENTRIES else []
    return element("details", element("summary", title), table(head, rows[:_MOST_ENTRIES], numbers), *more)


def _curves(run: Shown) -> Iterator[Markup]:
    """Yield a plot for each metric except the machine's; the losses of training and validation share one."""
    own = [name for name in run.metrics if not name.startswith("system/")]
    panels = panelled(sorted(own, key=lambda name: ("loss" not in name, not name.startswith("val/"), name)))
    for title, names in list(panels.items())[:_MOST_PANELS]:
        parts = [name.removesuffix(f"/{title}") if len(names) > 1 else "" for name in names]
        curves = [curve_of(run.metric(name), part) for name, part in zip(names, parts, strict=True)]
        yield chart(title, curves, width=400, height=200)
    if len(panels) > _MOST_PANELS:
        rest = ", ".join(list(panels)[_MOST_PANELS : _MOST_PANELS + 20])
        yield element("p", f"{len(panels) - _MOST_PANELS} more metrics: {rest}")


def runs_form(runs: Sequence[Shown], settings: Sequence[str], title: str = "") -> str:
    """Show runs as a table with inline curves; only the first runs and settings are shown."""
    shown, settings = runs[:_MOST_ROWS], settings[:_MOST_SETTINGS]
    metrics_of, problems = _metrics_of(shown)
    metrics = _leading({name for names in metrics_of.values() for name in names})
    head = ("id", "name", "status", "start", "duration", "result", *settings, *metrics)
    rows = [_row(run, settings, [n if n in metrics_of.get(run.id, ()) else None for n in metrics]) for run in shown]
    more = [element("p", f"and {len(runs) - _MOST_ROWS} more")] if len(runs) > _MOST_ROWS else []
    caption = element("p", title or count_text(len(runs), "run"))
    texts = {name for name in settings if any(isinstance(run.get(name), str) for run in shown)}
    numbers = (4, 5, *(column for column, name in enumerate(settings, 6) if name not in texts))
    style = "overflow-x:auto;font-family:system-ui,sans-serif"
    return element("div", caption, table(head, rows, numbers), *more, *problems, style=style)


def _metrics_of(runs: Sequence[Shown]) -> tuple[dict[str, list[str]], list[Markup]]:
    """Return the metrics of each run by its id, and the problems of runs that cannot be read."""
    metrics_of: dict[str, list[str]] = {}
    problems = []
    for run in runs:
        try:
            metrics_of[run.id] = run.metrics
        except RunsError as error:
            problems.append(element("p", f"run {run.id}: {error}"))
        else:
            if run.problem:
                problems.append(element("p", f"run {run.id} cannot be read completely: {run.problem}"))
    return metrics_of, problems


def _row(run: Shown, settings: Sequence[str], metrics: Sequence[str | None]) -> list[object]:
    start = element("span", time_text(run.get("start_time")), style="white-space:nowrap")
    row: list[object] = [run.id, run.name, status_form(run.status), start]
    row += [duration_text(run.get("duration")), _short(run.get("result"))]
    row += [_short(run.get(name)) for name in settings]
    return [*row, *(Markup("") if name is None else _sparkline(run, name) for name in metrics)]


def _sparkline(run: Shown, name: str) -> Markup:
    try:
        return sparkline(curve_of(run.metric(name), name))
    except RunsError:
        return Markup("")


def _leading(metrics: set[str]) -> list[str]:
    own = sorted(name for name in metrics if not name.startswith("system/"))
    order = {name: rank for rank, name in enumerate(_FIRST)}
    validations = [name for name in own if name.startswith("val/") and name not in order]
    return [*sorted(order.keys() & set(own), key=order.__getitem__), *validations, *own][:2] if own else []


def _short(value: Any, *, exact: bool = False) -> str:
    return short_text(dict(value) if isinstance(value, Mapping) else value, _MOST_CHARACTERS, exact=exact)
