"""Plots as SVG without a library, script or style sheet; text and axes take the colour of the surrounding text."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sacristan.runs.drawing.curve import COLORS, Curve, limits, log_ticks, pieces, scaled, thin, ticks, time_ticks
from sacristan.runs.drawing.markup import Markup, element

__all__ = ["chart", "sparkline"]

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
    """Draw a curve as small as a word, without axes; empty if no value is finite.

    The curve's label is the accessible name.
    """
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
    below = [part for line, row in enumerate(rows) for part in _row(*row, height + _LINE * line + 8)]
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


def _row(text: str, number: int | None, y: float) -> Iterator[Markup]:
    if number is None:
        yield _text(text, _LEFT, y + 4, opacity=0.7)
        return
    dash = _DASHES[number // len(COLORS) % len(_DASHES)] or None
    stroke = {"stroke": color_of(number), "stroke_width": 2.5, "stroke_dasharray": dash}
    yield element("path", d=f"M{_LEFT} {y:.0f}h18", fill="none", **stroke)
    yield _text(text, _LEFT + 24, y + 4)
