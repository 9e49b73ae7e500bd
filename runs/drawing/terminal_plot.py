"""Plots on the terminal, in braille dots, or in letters and stars without braille or colours.

plotille draws the dots, https://github.com/tammoippen/plotille; axes and legend are drawn here, with round numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sacristan.runs.drawing.curve import Curve, Panel, limits, log_ticks, pieces, scaled, ticks, time_ticks

if TYPE_CHECKING:
    from plotille import Canvas

__all__ = ["draw_text"]

# The colours of `sacristan.runs.drawing.curve` among the 256 of terminals, whose black and white depend on the user's
# theme.
_COLORS = (32, 166, 36, 175, 178, 75, 245)
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_AROUND_A_TIME_S = 60.0
_LEAST_WIDTH, _LEAST_HEIGHT = 16, 4
_EMPTY, _BRAILLE = 0x2800, range(0x2800, 0x2900)
_Limits = tuple[float, float]
_Ticks = Sequence[tuple[float, str]]


def draw_text(panel: Panel, width: int, height: int, *, colors: bool = False, braille: bool = True) -> list[str]:
    """Draw a panel as lines of text: the metric, axes, a legend if needed, and the notes in brackets.

    The size, in characters, bounds axes and curves; legend and notes go below. Several curves get a letter each, on the
    curve and in the legend, so that they differ without colours.
    """
    curves = [(curve, scaled(curve.y, panel.log_y)) for curve in panel.curves]
    across, down = _limits(panel, curves)
    y_ticks = log_ticks(*down) if panel.log_y else ticks(*down, max(2, height // 4))
    margin = max([len(text) for _, text in y_ticks], default=0)
    columns, rows = max(_LEAST_WIDTH, width - margin - 2), max(_LEAST_HEIGHT, height - 3)
    canvas = _canvas(columns, rows, across, down)
    for number, (curve, y) in enumerate(curves):
        _draw(canvas, curve, y, _color(number, colors), panel.log_y)
    if len(curves) > 1:
        _mark(canvas, curves[: len(_LETTERS)], colors)
    bar, corner, line = ("│", "└", "─") if braille else ("|", "+", "-")
    lines = [f"{panel.metric}{' (log)' if panel.log_y else ''}"]
    lines += _rows(canvas, y_ticks, down, margin, bar, braille)
    lines.append(f"{'':>{margin}} {corner}{line * columns}")
    # A tick needs the width of its label and some room; labels of times are longer.
    x_ticks = time_ticks(*across, columns // 20) if panel.is_time else ticks(*across, columns // 14)
    lines.append(_x_axis(x_ticks, across, columns, margin + 2, panel.x_label))
    if len(curves) > 1 or panel.curves[0].label:
        lines += [_legend(number, curve, len(curves) > 1, colors, braille) for number, (curve, _) in enumerate(curves)]
    return lines + [f"({note})" for note in panel.notes]


def _color(number: int, colors: bool) -> int | None:
    return _COLORS[number % len(_COLORS)] if colors else None


def _limits(panel: Panel, curves: Sequence[tuple[Curve, np.ndarray]]) -> tuple[_Limits, _Limits]:
    x = np.concatenate([curve.x for curve in panel.curves])
    edges = [edge for curve in panel.curves for edge in (curve.low, curve.high) if edge is not None]
    y = np.concatenate([*(values for _, values in curves), *(scaled(edge, panel.log_y) for edge in edges)])
    y = y[np.isfinite(y)]
    around_x, around_y = _AROUND_A_TIME_S * panel.is_time, 0.5 * panel.log_y
    return limits(x, around=around_x), limits(y, around=around_y)


def _canvas(columns: int, rows: int, x: _Limits, y: _Limits) -> Canvas:
    from plotille import Canvas

    # plotille's upper limits lie one dot outside.
    x_dots, y_dots = columns * 2, rows * 4
    x_high = x[0] + (x[1] - x[0]) * x_dots / (x_dots - 1)
    y_high = y[0] + (y[1] - y[0]) * y_dots / (y_dots - 1)
    return Canvas(columns, rows, x[0], y[0], x_high, y_high, mode="byte")


def _draw(canvas: Canvas, curve: Curve, y: np.ndarray, color: int | None, log_y: bool) -> None:
    if curve.low is not None and curve.high is not None:
        for edge in (curve.low, curve.high):
            values = scaled(edge, log_y)
            for position in np.flatnonzero(np.isfinite(values))[:: max(1, len(values) // canvas.width)]:
                canvas.point(float(curve.x[position]), float(values[position]), color=color)
    for piece in pieces(y):
        points = [(float(curve.x[i]), float(y[i])) for i in piece]
        canvas.point(*points[0], color=color)
        for start, end in itertools.pairwise(points):
            canvas.line(*start, *end, color=color)


def _mark(canvas: Canvas, curves: Sequence[tuple[Curve, np.ndarray]], colors: bool) -> None:
    """Put a letter on each curve, at different places, so that close curves do not hide each other's letters."""
    for number, (curve, y) in enumerate(curves):
        finite = np.flatnonzero(np.isfinite(y))
        if len(finite):
            share = (number % 8 + 0.5) / min(8, len(curves))
            index = finite[min(len(finite) - 1, int(share * len(finite)))]
            canvas.text(float(curve.x[index]), float(y[index]), _LETTERS[number], color=_color(number, colors))


def _rows(canvas: Canvas, y_ticks: _Ticks, down: _Limits, margin: int, bar: str, braille: bool) -> Iterator[str]:
    rows = canvas.plot(linesep="\n").split("\n")
    low, high = down
    labels = {round((high - value) / (high - low) * (len(rows) - 1)): text for value, text in y_ticks}
    for row, text in enumerate(rows):
        yield f"{labels.get(row, ''):>{margin}} {bar}{text if braille else _as_stars(text)}".rstrip(f" {chr(_EMPTY)}")


def _x_axis(x_ticks: _Ticks, across: _Limits, columns: int, margin: int, label: str) -> str:
    """Return the line below the axis: the label, and the ticks that do not touch each other."""
    low, high = across
    room = [" "] * columns
    for value, text in x_ticks:
        start = min(round((value - low) / (high - low) * (columns - 1)), columns - len(text))
        if start >= 0 and all(character == " " for character in room[max(0, start - 1) : start + len(text)]):
            room[start : start + len(text)] = text
    line = f"{' ' * margin}{''.join(room)}".rstrip()
    return f"{line}  {label}" if len(line) + len(label) + 2 <= margin + columns else f"{line}\n{' ' * margin}{label}"


def _legend(number: int, curve: Curve, has_letter: bool, colors: bool, braille: bool) -> str:
    from plotille import color

    mark = _LETTERS[number] if has_letter and number < len(_LETTERS) else "⠒" if braille else "*"
    if colors:
        mark = color(mark, fg=_color(number, colors), mode="byte")
    return f"  {mark} {curve.label}"


def _as_stars(text: str) -> str:
    return "".join(
        (" " if ord(character) == _EMPTY else "*") if ord(character) in _BRAILLE else character for character in text
    )
