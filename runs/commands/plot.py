"""`plot`: curves on the terminal, or in a picture."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from sacristan.runs.commands import terminal
from sacristan.runs.commands.terminal.outcomes import print_problems, print_written
from sacristan.runs.commands.terminal.text import harmless, is_coloured, is_terminal, print_json

if TYPE_CHECKING:
    import numpy as np

    from sacristan.runs.drawing.curve import Curve, Panel

_EPILOG = """Without --output the plot goes to the terminal. With --by each group is drawn as its mean, with
Student's interval at each point. docs/comparing.md explains how curves with different steps are combined."""
_LIMIT, _LEGEND_LINES = 20, 6


class PlottedCurve(TypedDict):
    """A curve; its lists have the same length."""

    label: Annotated[str, "The run, or the group."]
    own_from: Annotated[
        float | None,
        "Where the points of the run itself begin on the horizontal axis, with `--joined`; else null.",
    ]
    x: Annotated[list[float], "The points."]
    y: Annotated[list[float], "The points."]
    low: Annotated[list[float] | None, "The band around the mean of a group; null without one."]
    high: Annotated[list[float] | None, "The band around the mean of a group; null without one."]
    counts: Annotated[list[int] | None, "Number of runs in each mean; null for a single run."]
    raw: Annotated[list[float] | None, "Values before smoothing; null without smoothing."]


class PlottedPanel(TypedDict):
    """The curves of a metric."""

    metric: Annotated[str, "The metric."]
    x_label: Annotated[str, "Label of the horizontal axis."]
    notes: Annotated[list[str], "Notes, such as on left out runs."]
    curves: Annotated[list[PlottedCurve], "The curves."]


class Plotted(TypedDict):
    """The data of a plot."""

    x: Annotated[str, "The horizontal axis: `step`, `epoch`, `time` or `wall`."]
    panels: Annotated[list[PlottedPanel], "One for each metric."]


JSON = Plotted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    terminal.add_runs(parser, "*", "ids, uids, beginnings of uids, or latest; or choose with --where")
    parser.add_argument("--metric", action="append", required=True, metavar="NAME", help="may be repeated")
    terminal.add_selection(parser)
    help = f"maximum number of runs besides named ones, 0 for all ({_LIMIT}; with --by all)"
    parser.add_argument("--limit", type=terminal.bound, metavar="N", help=help)
    terminal.add_groups(parser, "draw the mean of each group")
    help = "around means: interval of the mean, range of the runs, or none (interval)"
    parser.add_argument("--band", choices=("interval", "range", "none"), default="interval", help=help)
    parser.add_argument(
        "--confidence", type=terminal.confidence, default=0.95, metavar="C", help="of the interval (0.95)"
    )
    terminal.add_curves(parser)
    help = "also draw, dashed, the points of the runs that a run was started from, up to its start"
    parser.add_argument("--joined", action="store_true", help=help)
    parser.add_argument("--title", default="", help="title of the picture")
    outputs = parser.add_mutually_exclusive_group()
    terminal.add_output(parser, "write a picture: .png, .svg or .pdf (extra plot)", group=outputs)
    terminal.add_json(outputs)


def main(arguments: argparse.Namespace) -> int:
    """Draw the curves."""
    from sacristan.runs.comparison.panels import View, make_panels

    if arguments.output is not None:
        from sacristan.runs.drawing.plots import check_format

        check_format(arguments.output)
    output = terminal.output_of(arguments)
    by, over = terminal.names_in(*arguments.by), terminal.names_in(*arguments.over)
    view = View(by, over, arguments.x, arguments.smoothing, arguments.band, arguments.confidence, arguments.log_y)
    view = dataclasses.replace(view, joined=arguments.joined)
    with terminal.open_given(arguments) as store:
        columns = (*by, *over, "status", "config")
        runs, note = terminal.choose_runs(store, arguments, columns, 0 if by else _LIMIT, may_be_all=bool(by))
        panels = make_panels(runs, arguments.metric, view)
    print_problems({run.id: run.problem for run in runs if run.problem})
    if note:
        panels = [dataclasses.replace(panel, notes=(*panel.notes, note)) for panel in panels]
    if arguments.json:
        print_json(Plotted(x=arguments.x, panels=[_document(panel) for panel in panels]))
    elif output is not None:
        from sacristan.runs.drawing.plots import draw

        draw(panels, output, arguments.title, overwrite=arguments.force)
        num_curves = sum(len(panel.curves) for panel in panels)
        print_written(output, f"{num_curves} curves of {len(runs)} runs", with_length=False)
    else:
        _print(panels)
    return 0


def _document(panel: Panel) -> PlottedPanel:
    curves = [_curve_document(curve) for curve in panel.curves]
    return {"metric": panel.metric, "x_label": panel.x_label, "notes": list(panel.notes), "curves": curves}


def _curve_document(curve: Curve) -> PlottedCurve:
    def as_list(values: np.ndarray | None) -> list[Any] | None:
        return None if values is None else values.tolist()

    return {
        "label": curve.label,
        "own_from": curve.own_from,
        "x": curve.x.tolist(),
        "y": curve.y.tolist(),
        "low": as_list(curve.low),
        "high": as_list(curve.high),
        "counts": as_list(curve.counts),
        "raw": as_list(curve.raw),
    }


def _print(panels: Sequence[Panel]) -> None:
    from sacristan.runs.drawing.plots import draw_text

    size = shutil.get_terminal_size()
    lines = (size.lines if is_terminal() else 24) - 2
    height = max(10, min(30, lines // len(panels) - min(_LEGEND_LINES, len(panels[0].curves) + 1)))
    for number, panel in enumerate(map(_harmless, panels)):
        if number:
            print()
        for line in draw_text(panel, size.columns, height, colors=is_coloured(), braille=_has_braille()):
            print(line)


def _harmless(panel: Panel) -> Panel:
    curves = tuple(dataclasses.replace(curve, label=harmless(curve.label)) for curve in panel.curves)
    return dataclasses.replace(
        panel, metric=harmless(panel.metric), curves=curves, notes=tuple(map(harmless, panel.notes))
    )


def _has_braille() -> bool:
    try:
        "⠿─│".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
