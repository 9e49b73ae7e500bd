"""Panels as PNG, SVG and PDF files by matplotlib, or in braille dots or letters on the terminal.

The same panel and matplotlib give the same bytes. plotille draws the dots, https://github.com/tammoippen/plotille; axes
and legend of the terminal are drawn here, with round numbers.
"""

from __future__ import annotations

import contextlib
import itertools
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sacristan.configs.packages import missing_package
from sacristan.runs.drawing.curve import COLORS, Curve, Panel, limits, log_ticks, pieces, scaled, ticks, time_ticks
from sacristan.runs.drawing.output_file import writing
from sacristan.runs.errors import PlotError

if TYPE_CHECKING:
    from plotille import Canvas

# Without the metadata that would differ from one drawing to the next.
FORMATS: dict[str, dict[str, Any]] = {
    ".png": {"metadata": {"Software": None}},
    ".svg": {"metadata": {"Date": None}},
    ".pdf": {"metadata": {"CreationDate": None}},
}
_DASHES = ("-", "--", "-.", ":")
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text that can be found and edited
    "svg.hashsalt": "sacristan",
    "pdf.fonttype": 42,
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.8,
    "axes.edgecolor": "#888888",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
_WIDTH, _WITH_LEGEND, _HEIGHT = 7.5, 10.5, 4.0  # inches
_DAY_S = 86_400  # dates of matplotlib are in days
_MAX_INSIDE, _MAX_IN_LEGEND, _NOTE_WIDTH = 5, 26, 110


@contextlib.contextmanager
def house_style() -> Iterator[None]:
    """Use one style for matplotlib figures within the block, whatever the user's own settings are."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # A letter that the font lacks shows as a box; no warning is needed.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def check_format(path: Path) -> None:
    """Raise PlotError if the suffix of a file, which need not exist, is none of `FORMATS`; case does not matter."""
    if path.suffix.lower() not in FORMATS:
        raise PlotError(f"got the file {path}, expected one that ends in {', '.join(FORMATS)}")


def draw(panels: Sequence[Panel], path: Path, title: str = "", *, overwrite: bool = False) -> None:
    """Draw panels below each other into a file, which is replaced atomically."""
    check_format(path)
    suffix = path.suffix.lower()
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError(missing_package("pictures need", "matplotlib", "plot")) from error
    with house_style():
        width = _WIDTH if max(len(panel.curves) for panel in panels) <= _MAX_INSIDE else _WITH_LEGEND
        figure = Figure(figsize=(width, _HEIGHT * len(panels)), layout="constrained", dpi=150)
        for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
            _draw_panel(axes, panel)
        if title:
            figure.suptitle(printable(title))
        with writing(path, overwrite=overwrite) as stream:
            figure.savefig(stream, format=suffix[1:], **FORMATS[suffix])


def _draw_panel(axes: Any, panel: Panel) -> None:
    handles = [_draw_curve(axes, panel, number) for number in range(len(panel.curves))]
    if panel.log_y:
        lines = [line for curve in panel.curves for line in (curve.y, curve.raw) if line is not None]
        values = np.concatenate([_shown(line, log_y=True) for line in lines])
        axes.set_yscale("log", nonpositive="clip")
        # A band that goes below 0 would stretch the axis without end.
        axes.set_ylim(np.nanmin(values) / 1.3, None)
    if panel.is_time:
        _date(axes)
    axes.set_xlabel(printable(panel.x_label))
    axes.set_ylabel(printable(panel.metric))
    axes.margins(x=0.01)
    _add_legend(axes, handles, [printable(curve.label) for curve in panel.curves])
    if panel.notes:
        notes = "\n".join(textwrap.wrap("; ".join(map(printable, panel.notes)), _NOTE_WIDTH))
        axes.set_title(notes, fontsize=8, color="#666666", loc="left")


def _draw_curve(axes: Any, panel: Panel, number: int) -> Any:
    curve, log_y = panel.curves[number], panel.log_y
    color = COLORS[number % len(COLORS)]
    dash = _DASHES[number // len(COLORS) % len(_DASHES)]
    x, y = curve.x / _DAY_S if panel.is_time else curve.x, _shown(curve.y, log_y)
    if curve.raw is not None:
        axes.plot(x, _shown(curve.raw, log_y), color=color, linewidth=0.8, alpha=0.25)
        _mark_lonely(axes, x, _shown(curve.raw, log_y), color, alpha=0.25)
    if curve.low is not None and curve.high is not None:
        # On a logarithmic axis the band reaches the edge where it goes below 0.
        low, high = _shown(curve.low, False), _shown(curve.high, log_y)
        axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
        lonely = _lonely(x, np.where(np.isfinite(low), high, np.nan))
        if len(lonely):
            axes.vlines(x[lonely], low[lonely], high[lonely], color=color, alpha=0.18, linewidth=3)
    if at := curve.num_inherited:
        before = {"color": color, "linestyle": (0, (1.5, 2)), "linewidth": 1.0}
        axes.plot(x[: at + 1], y[: at + 1], gid=f"inherited-{number}", **before)
        _mark_lonely(axes, x[:at], y[:at], color)
        x, y = x[at:], y[at:]
    [line] = axes.plot(x, y, color=color, linestyle=dash, linewidth=1.6, gid=f"curve-{number}")
    _mark_lonely(axes, x, y, color)
    return line


def _mark_lonely(axes: Any, x: np.ndarray, y: np.ndarray, color: str, alpha: float = 1.0) -> None:
    lonely = _lonely(x, y)
    if len(lonely):
        axes.plot(x[lonely], y[lonely], color=color, linestyle="", marker="o", markersize=3, alpha=alpha)


def _lonely(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the positions of points between two gaps, and the first of several at the same place."""
    lonely = [piece[0] for piece in pieces(y) if not np.ptp(x[piece]) and not np.ptp(y[piece])]
    return np.array(lonely, np.intp)


def _date(axes: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz="UTC")
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz="UTC"))


def _add_legend(axes: Any, handles: list[Any], labels: list[str]) -> None:
    excess = len(handles) - _MAX_IN_LEGEND
    if excess > 0:
        handles, labels = handles[:_MAX_IN_LEGEND], labels[:_MAX_IN_LEGEND]
        labels[-1] += f", and {excess} more"
    # Many entries go beside the curves, as no space among them is free.
    options = {"loc": "best"} if len(handles) <= _MAX_INSIDE else {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    axes.legend(handles, labels, **options)


def _shown(values: np.ndarray, log_y: bool) -> np.ndarray:
    return np.where(np.isfinite(values) & ((values > 0) | (not log_y)), values, np.nan)


def printable(text: str) -> str:
    """Return a text that matplotlib shows literally: without control characters, formulas and hidden labels."""
    text = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return f"{' ' * text.startswith('_')}{text}".replace("$", r"\$")


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
