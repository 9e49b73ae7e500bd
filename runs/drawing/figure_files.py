"""Plots as PNG, SVG and PDF files by matplotlib; the same plot and matplotlib give the same bytes."""

from __future__ import annotations

import contextlib
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.configs.installation import missing_package
from sacristan.runs.drawing.curve import COLORS, Panel, pieces
from sacristan.runs.drawing.output_file import writing
from sacristan.runs.errors import PlotError

__all__ = ["COLORS", "FORMATS", "check_format", "draw", "house_style", "printable"]

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
    """Draw panels below each other into a file, which is replaced atomically.

    Raises PlotError if matplotlib is not installed or the suffix names no format, and StoreError if the file exists or
    is not writable.
    """
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
    """Return a text that matplotlib shows literally.

    Control characters, which SVG cannot hold, are replaced; a dollar starts no formula; a leading underscore, which
    would keep a label out of the legend, gets a space before it.
    """
    text = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return f"{' ' * text.startswith('_')}{text}".replace("$", r"\$")
