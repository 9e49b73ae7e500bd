"""Plots as SVG of our own: no library, no script, no style sheet; text and axes in the colour of the text around."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterator, Sequence

import numpy as np

from runs.drawing.curve import COLORS, Curve, thin
from runs.drawing.markup import Markup, element
from runs.drawing.ticks import log_ticks, tick_label, ticks, time_ticks

__all__ = ["chart", "color_of", "sparkline"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 18, 26, 36
_LINE = 16  # pixels of a line of the legend
_MOST_IN_LEGEND = 12
_DASHES = ("", "6 3", "2 2", "8 3 2 3")
_FONT = "font:12px system-ui,sans-serif"


def color_of(number: int) -> str:
    """Return the colour of a curve; black would not be seen on black, so that takes the colour of the text."""
    color = COLORS[number % len(COLORS)]
    return "currentColor" if color == "#000000" else color


def sparkline(curve: Curve, width: int = 120, height: int = 24) -> Markup:
    """Return a curve as small as a word, without axes."""
    drawn = thin(curve, 2 * width)
    frame = _Frame.of([drawn], "", False, (1.0, width - 1.0), (height - 2.0, 2.0))
    if frame is None:
        return Markup("")
    path = element("path", d=frame.path(drawn.x, drawn.y), fill="none", stroke=color_of(0), stroke_width=1.3)
    label = f"{curve.label}: {len(curve.x)} points"
    return element("svg", path, width=width, height=height, role="img", aria_label=label)


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
    """Return curves over axes, with a legend below them.

    Args:
        title: Above the axes, such as the metric.
        curves: At most a few thousand points are drawn of each.
        x_label: Of the axis.
        notes: Sentences below the legend.
        log_y: Whether values are drawn logarithmically; what is not above 0 is a gap.
        is_time: Whether positions are seconds since 1970.
        width, height: In pixels; the legend adds to the height.
    """
    drawn = [thin(curve, 3 * width) for curve in curves]
    frame = _Frame.of(drawn, x_label, log_y, (_LEFT, width - _RIGHT), (height - _BOTTOM, _TOP))
    parts = [_text(title, _LEFT, 15, weight=600)]
    if frame is None:
        parts.append(_text("no finite values", _LEFT, height / 2))
    else:
        parts += [*frame.axes(is_time), *frame.lines(drawn)]
    rows = _rows(curves, notes, width)
    below = [part for place, row in enumerate(rows) for part in _row(*row, height + _LINE * place + 8)]
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
    """Position of values in a picture: limits of the data, and pixels of the edges."""

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
        """Return the frame of curves; None if there is no finite value."""
        x = [curve.x[np.isfinite(_scaled(curve.y, log_y))] for curve in curves]
        edges = [edge for curve in curves for edge in (curve.low, curve.high) if edge is not None]
        y = [_scaled(values, log_y) for values in (*(curve.y for curve in curves), *edges)]
        positions, values = np.concatenate([*x, np.empty(0)]), np.concatenate([*y, np.empty(0)])
        values = values[np.isfinite(values)]
        if not len(positions):
            return None
        return cls(_limits(positions), _limits(values, 0.08), *across, *down, x_label, log_y)

    def at(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the pixels of scaled values."""
        across = self.left + (x - self.x[0]) / (self.x[1] - self.x[0]) * (self.right - self.left)
        down = self.bottom + (y - self.y[0]) / (self.y[1] - self.y[0]) * (self.top - self.bottom)
        return across, down

    def path(self, x: np.ndarray, y: np.ndarray) -> str:
        """Return the path of a line with its gaps; a point between two gaps is a short stroke."""
        across, down = self.at(x, _scaled(y, self.log_y))
        found, is_pen_down = [], False
        for left, top in zip(across.tolist(), down.tolist(), strict=True):
            if not math.isfinite(top):
                is_pen_down = False
                continue
            found.append(f"L{left:.1f} {top:.1f}" if is_pen_down else f"M{left:.1f} {top:.1f}h.5")
            is_pen_down = True
        return "".join(found)

    def lines(self, curves: Sequence[Curve]) -> Iterator[Markup]:
        """Yield bands, what was smoothed, and lines."""
        for number, curve in enumerate(curves):
            color = color_of(number)
            if curve.low is not None and curve.high is not None:
                yield element("path", d=self._band(curve), fill=color, fill_opacity=0.18)
            if curve.raw is not None:
                raw = self.path(curve.x, curve.raw)
                yield element("path", d=raw, fill="none", stroke=color, stroke_opacity=0.25)
            dash = _DASHES[number // len(COLORS) % len(_DASHES)] or None
            line = {"fill": "none", "stroke": color, "stroke_width": 1.6, "stroke_dasharray": dash}
            yield element("path", d=self.path(curve.x, curve.y), stroke_linejoin="round", **line)

    def _band(self, curve: Curve) -> str:
        assert curve.low is not None
        assert curve.high is not None
        # On a logarithmic axis a band goes down to the edge where it reaches below 0.
        low = np.maximum(np.nan_to_num(_scaled(curve.low, self.log_y), nan=self.y[0]), self.y[0])
        high = _scaled(curve.high, self.log_y)
        usable = np.isfinite(high) & np.isfinite(curve.low)
        pieces = np.flatnonzero(usable)
        found = []
        for piece in np.split(pieces, np.flatnonzero(np.diff(pieces) > 1) + 1) if len(pieces) else ():
            there, back = self.at(curve.x[piece], high[piece]), self.at(curve.x[piece], low[piece])
            points = [*zip(*there, strict=True), *reversed(list(zip(*back, strict=True)))]
            found.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z")
        return "".join(found)

    def axes(self, is_time: bool) -> Iterator[Markup]:
        """Yield grid, ticks and labels."""
        y_ticks = log_ticks(*self.y) if self.log_y else [(value, tick_label(value)) for value in ticks(*self.y, 5)]
        for value, label in y_ticks:
            [top] = self.at(np.array([self.x[0]]), np.array([value]))[1]
            yield self._grid(self.left, top, self.right, top)
            yield _text(label, self.left - 6, top + 4, anchor="end", opacity=0.8)
        x_ticks = time_ticks(*self.x, 5) if is_time else [(value, tick_label(value)) for value in ticks(*self.x, 6)]
        for value, label in x_ticks:
            [left] = self.at(np.array([value]), np.array([self.y[0]]))[0]
            yield self._grid(left, self.bottom, left, self.bottom + 4)
            yield _text(label, left, self.bottom + 16, anchor="middle", opacity=0.8)
        yield self._grid(self.left, self.bottom, self.right, self.bottom, 0.6)
        yield _text(self.x_label, (self.left + self.right) / 2, self.bottom + 31, anchor="middle", opacity=0.8)

    def _grid(self, x1: float, y1: float, x2: float, y2: float, opacity: float = 0.18) -> Markup:
        ends = {key: f"{value:.1f}" for key, value in (("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2))}
        return element("line", **ends, stroke="currentColor", stroke_opacity=opacity)


def _scaled(values: np.ndarray, log_y: bool) -> np.ndarray:
    """Return values as they are drawn; NaN for gaps."""
    if not log_y:
        return np.where(np.isfinite(values), np.clip(values, -1e300, 1e300), np.nan)
    return np.log10(values, out=np.full(len(values), np.nan), where=np.isfinite(values) & (values > 0))


def _limits(values: np.ndarray, margin: float = 0.0) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    room = (high - low) * margin
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        room = abs(low) * 0.1 or 0.5
    return low - room, high + room


def _text(text: str, x: float, y: float, *, anchor: str = "start", weight: int = 400, opacity: float = 1.0) -> Markup:
    style = {"text_anchor": anchor, "font_weight": weight, "opacity": opacity, "fill": "currentColor"}
    return element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", **style)


def _rows(curves: Sequence[Curve], notes: Sequence[str], width: int) -> list[tuple[str, int | None]]:
    """Return the lines below the axes: texts, and the numbers of the curves that they stand for."""
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
