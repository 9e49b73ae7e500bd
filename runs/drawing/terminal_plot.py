"""Plots on the terminal, of braille dots; with letters and stars where these or colours are missing.

The dots are plotille's, https://github.com/tammoippen/plotille; axes and legend are our own, to have round numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from runs.drawing.curve import Curve
from runs.drawing.panel import Panel
from runs.drawing.ticks import log_ticks, tick_label, ticks, time_ticks

if TYPE_CHECKING:
    from plotille import Canvas

__all__ = ["draw_text"]

# The colours of `runs.drawing.pictures`, from the 256 of terminals, which make black and white what they like.
_COLORS = (32, 166, 36, 175, 178, 75, 245)
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_AROUND_A_TIME_S = 60.0
_LEAST_WIDTH, _LEAST_HEIGHT = 16, 4
_EMPTY, _BRAILLE = 0x2800, range(0x2800, 0x2900)


def draw_text(panel: Panel, width: int, height: int, *, colors: bool = False, braille: bool = True) -> list[str]:
    """Return the lines of a panel.

    Every curve has a letter, which stands on it and in the legend, so that colours are not needed.

    Args:
        panel: What is drawn.
        width, height: Characters that axes and curves take at most; legend and notes are below.
        colors: Use escape sequences for colours.
        braille: Use braille dots; else stars.
    """
    log_y = panel.log_y
    curves = [(curve, _shown(curve.y, log_y)) for curve in panel.curves]
    (x_low, x_high), (y_low, y_high) = _limits(panel, curves)
    y_ticks = log_ticks(y_low, y_high) if log_y else _round_ticks(y_low, y_high, max(2, height // 4))
    margin = max([len(text) for _, text in y_ticks], default=0)
    columns, rows = max(_LEAST_WIDTH, width - margin - 2), max(_LEAST_HEIGHT, height - 3)
    canvas = _canvas(columns, rows, (x_low, x_high), (y_low, y_high))
    for number, (curve, y) in enumerate(curves):
        _draw(canvas, curve, y, _COLORS[number % len(_COLORS)] if colors else None, log_y)
    for number, (curve, y) in enumerate(curves[: len(_LETTERS)] if len(curves) > 1 else ()):
        # Each at a place of its own, so that curves that lie close do not hide the letters.
        share = (number % 8 + 0.5) / min(8, len(curves))
        _mark(canvas, curve, y, _COLORS[number % len(_COLORS)] if colors else None, _LETTERS[number], share)
    drawn = canvas.plot(linesep="\n").split("\n")
    labels = {round((y_high - value) / (y_high - y_low) * (rows - 1)): text for value, text in y_ticks}
    bar, corner, line = ("│", "└", "─") if braille else ("|", "+", "-")
    lines = [f"{panel.metric}{' (log)' if log_y else ''}"]
    for row, text in enumerate(drawn):
        shown = text if braille else _as_stars(text)
        lines.append(f"{labels.get(row, ''):>{margin}} {bar}{shown}".rstrip(f" {chr(_EMPTY)}"))
    lines.append(f"{'':>{margin}} {corner}{line * columns}")
    # Each tick takes its label, and some room; that of a time is longer.
    across = time_ticks(x_low, x_high, columns // 20) if panel.is_time else _round_ticks(x_low, x_high, columns // 14)
    lines.append(_x_axis(across, (x_low, x_high), columns, margin + 2, panel.x_label))
    if len(panel.curves) > 1 or panel.curves[0].label:
        lines += [_legend(number, curve, len(curves) > 1, colors, braille) for number, (curve, _) in enumerate(curves)]
    return lines + [f"({note})" for note in panel.notes]


def _round_ticks(low: float, high: float, num: int) -> list[tuple[float, str]]:
    return [(value, tick_label(value)) for value in ticks(low, high, max(1, num))]


def _shown(values: np.ndarray, log_y: bool) -> np.ndarray:
    if not log_y:
        # Limits that far apart cannot be subtracted.
        return np.where(np.isfinite(values), np.clip(values, -1e300, 1e300), np.nan)
    return np.log10(values, out=np.full(len(values), np.nan), where=np.isfinite(values) & (values > 0))


def _limits(panel: Panel, shown: Sequence[tuple[Curve, np.ndarray]]) -> tuple[tuple[float, float], tuple[float, float]]:
    x = np.concatenate([curve.x for curve in panel.curves])
    log_y = panel.log_y
    edges = [_shown(edge, log_y) for curve in panel.curves for edge in (curve.low, curve.high) if edge is not None]
    y = np.concatenate([*(values for _, values in shown), *edges])
    return _range(x, _AROUND_A_TIME_S if panel.is_time else 0.0), _range(y[np.isfinite(y)], 0.5 if log_y else 0.0)


def _range(values: np.ndarray, least: float = 0.0) -> tuple[float, float]:
    """Return the limits of an axis; around a single value some room, relative to it unless `least` is given."""
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        around = least or abs(low) * 0.1 or 0.5
        return low - around, high + around
    return low, high


def _canvas(columns: int, rows: int, x: tuple[float, float], y: tuple[float, float]) -> Canvas:
    from plotille import Canvas

    # plotille's upper limits lie one dot outside.
    x_dots, y_dots = columns * 2, rows * 4
    x_high = x[0] + (x[1] - x[0]) * x_dots / (x_dots - 1)
    y_high = y[0] + (y[1] - y[0]) * y_dots / (y_dots - 1)
    return Canvas(columns, rows, x[0], y[0], x_high, y_high, mode="byte")


def _draw(canvas: Canvas, curve: Curve, y: np.ndarray, color: int | None, log_y: bool) -> None:
    if curve.low is not None and curve.high is not None:
        for edge in (curve.low, curve.high):
            values = _shown(edge, log_y)
            for position in np.flatnonzero(np.isfinite(values))[:: max(1, len(values) // canvas.width)]:
                canvas.point(float(curve.x[position]), float(values[position]), color=color)
    for part in _pieces(y):
        points = [(float(curve.x[i]), float(y[i])) for i in part]
        canvas.point(*points[0], color=color)
        for start, end in itertools.pairwise(points):
            canvas.line(*start, *end, color=color)


def _mark(canvas: Canvas, curve: Curve, y: np.ndarray, color: int | None, letter: str, share: float) -> None:
    """Put a letter on a curve, `share` of the way along it."""
    finite = np.flatnonzero(np.isfinite(y))
    if len(finite):
        place = finite[min(len(finite) - 1, int(share * len(finite)))]
        canvas.text(float(curve.x[place]), float(y[place]), letter, color=color)


def _pieces(y: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the positions between gaps."""
    finite = np.flatnonzero(np.isfinite(y))
    if len(finite):
        yield from np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1)


def _x_axis(
    marks: Sequence[tuple[float, str]], limits: tuple[float, float], columns: int, margin: int, label: str
) -> str:
    """Return the line below the axis: ticks where they belong, and what they are."""
    low, high = limits
    room = [" "] * columns
    for value, text in marks:
        start = round((value - low) / (high - low) * (columns - 1))
        start = min(start, columns - len(text))
        if start >= 0 and all(character == " " for character in room[max(0, start - 1) : start + len(text)]):
            room[start : start + len(text)] = text
    line = f"{' ' * margin}{''.join(room)}".rstrip()
    return f"{line}  {label}" if len(line) + len(label) + 2 <= margin + columns else f"{line}\n{' ' * margin}{label}"


def _legend(number: int, curve: Curve, has_letter: bool, colors: bool, braille: bool) -> str:
    from plotille import color

    mark = _LETTERS[number] if has_letter and number < len(_LETTERS) else "⠒" if braille else "*"
    if colors:
        mark = color(mark, fg=_COLORS[number % len(_COLORS)], mode="byte")
    return f"  {mark} {curve.label}"


def _as_stars(text: str) -> str:
    return "".join(
        (" " if ord(character) == _EMPTY else "*") if ord(character) in _BRAILLE else character for character in text
    )
