"""Panels of curves in the workspace, and their points as CSV."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from sacristan.runs.board.answers import look_again_s, numbers_response
from sacristan.runs.board.charts import Chart, is_chart
from sacristan.runs.board.colours import colour_of, colours_of
from sacristan.runs.board.points_page import MAX_POINTS, Table, between, check_number, csv_response
from sacristan.runs.board.run_charts import chart_document
from sacristan.runs.board.views import RunsView
from sacristan.runs.board.visits import Visit, page
from sacristan.runs.comparison.expressions import Quantity
from sacristan.runs.comparison.panels import CurveCache, make_panel
from sacristan.runs.drawing.curve import Curve, Panel
from sacristan.runs.errors import FilterError, PlotError
from sacristan.runs.query.names import split_names
from sacristan.runs.stores.run import Run

__all__ = ["MAX_DRAWN", "PINNED", "ROUTES", "Section", "first_panels", "panels_url", "sections_of"]

# Runs behind the curves of a panel.
MAX_DRAWN = 500
# Points that one answer holds, over all of its curves, and those of one curve: of 50 runs, two for each column of
# pixels that a panel has. Drawing takes a time that grows with them.
_MAX_ANSWERED, _MOST_OF_A_CURVE, _LEAST_OF_A_CURVE = 30_000, 2_000, 100
_MAX_METRICS, _MAX_QUANTITIES = 1_000, 10
# Runs that are asked whether they still log.
_MAX_ASKED = 50
# The section of the pinned panels; no metric begins so.
PINNED = "/"
_PANEL, _PRELOADED = "/workspace/panel", 2
# Of the metrics of a panel, as plotly.js calls them.
_DASHES = ("solid", "dot", "dash", "dashdot")
_X_COLUMNS = {"time": "time_s", "wall": "wall_time_s"}

Section = tuple[str, list[str]]


def sections_of(runs: Sequence[Run], pinned: Sequence[str]) -> list[Section]:
    """Return the panels of runs in sections: pinned ones, then one for each metric, by the first part of its name.

    Sections of validation come first, those of the machine last. Only runs that panels draw are read.
    """
    names = sorted({name for run in runs[:MAX_DRAWN] for name in run.metrics}, key=_rank)[:_MAX_METRICS]
    sections: dict[str, list[str]] = {PINNED: list(pinned)} if pinned and runs else {}
    for name in names:
        if name in pinned:
            continue
        sections.setdefault(_prefix(name), []).append(name)
    return list(sections.items())


def _prefix(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _rank(name: str) -> tuple[bool, bool, str, bool, str]:
    """Return the sort key of a metric: validations first, those of the machine last, losses first in each section."""
    prefix = _prefix(name)
    return prefix == "system", prefix not in ("val", "valid", "validation"), prefix, "loss" not in name, name


def panels_url(view: RunsView, runs: Sequence[Run]) -> str:
    """Return the URL that all panels of a view share: without the panel, and without the fields of the chart form.

    It is empty without runs.
    """
    if not runs:
        return ""
    if view.group:
        return view.of_all(_PANEL)
    return RunsView(run=tuple(run.id for run in runs)).url(_PANEL)


def first_panels(view: RunsView, url: str, sections: Sequence[Section]) -> list[str]:
    """Return the URLs that the script of the page requests first."""
    names = [name for _, names in sections for name in names if not is_chart(name)]
    names = names[: 0 if view.zoom else _PRELOADED]
    return [url + f"&panel={quote(name)}{view.settings}" for name in names]


# ---------------------------------------------------------------------- curves


def _panel(visit: Visit) -> Response:
    """Answer with the curves of one panel, in a range of the axis."""
    started = time.perf_counter()
    view = RunsView.of(visit.request.query_params)
    if chart := Chart.of(visit.asked("panel")):
        return numbers_response(chart_document(visit, view, chart))
    runs = _drawn_runs(visit, view)
    # First, as `make_panel` copies the runs with all that they hold.
    visit.store.prefetch(runs, ["metrics", "uid", "status", "start_time", "display_name", "heartbeat", "stop_time"])
    colours = colours_of(runs)
    num_points = max(_LEAST_OF_A_CURVE, min(_MOST_OF_A_CURVE, _MAX_ANSWERED // max(1, len(runs))))
    panel = _made(visit, view, runs, num_points, (visit.bound("from"), visit.bound("to")), visit.board.curves)
    return numbers_response(
        {
            "metric": panel.metric,
            "x": view.x,
            "x_label": panel.x_label,
            "notes": list(panel.notes),
            "curves": [_document(curve, colours) for curve in panel.curves],
            "living": any(run.is_living for run in runs[:_MAX_ASKED]),
            "look_again_s": look_again_s(started),
        }
    )


def _drawn_runs(visit: Visit, view: RunsView) -> list[Run]:
    """Return the runs of a view whose curves are drawn."""
    if view.run and not (view.where or view.words):
        if len(view.run) > MAX_DRAWN:
            raise FilterError(f"got {len(view.run)} runs, expected {MAX_DRAWN} at most; choose fewer")
        return [run.listed() for run in visit.store.get_all(view.run)]
    return [run.listed() for run in visit.store.find(view.tree, view.sort, MAX_DRAWN)]


def _made(
    visit: Visit,
    view: RunsView,
    runs: Sequence[Run],
    num_points: int,
    bounds: tuple[float | None, float | None],
    kept: CurveCache | None = None,
) -> Panel:
    title = visit.asked("panel")
    metrics = _quantities(title, runs)
    labels = {} if view.group or not runs else visit.board.labels.of(runs)
    return make_panel(title, metrics, runs, view.plot(num_points, bounds), labels, kept)


def _quantities(title: str, runs: Sequence[Run]) -> list[str]:
    """Return the metrics and expressions of a panel; a metric whose name contains a comma stays whole."""
    metrics = [title] if any(title in run.metrics for run in runs) else split_names(title)
    if not 0 < len(metrics) <= _MAX_QUANTITIES:
        raise PlotError(f"got {len(metrics)} metrics to draw, expected 1 to {_MAX_QUANTITIES} in a panel")
    return metrics


def _document(curve: Curve, colours: Mapping[str, str]) -> dict[str, Any]:
    parts = {name: getattr(curve, name) for name in ("x", "y", "low", "high", "raw")}
    return {
        "key": curve.key,
        "label": curve.label,
        "color": colours.get(curve.key) or colour_of(curve.key),
        "dash": _DASHES[curve.part % len(_DASHES)],
        **({"inherited": curve.num_inherited} if curve.num_inherited else {}),
        **{name: values for name, values in parts.items() if values is not None},
    }


# ---------------------------------------------------------------------- all points as CSV


def _points(visit: Visit) -> Response:
    """Answer with all points of the curves of one panel."""
    view = RunsView.of(visit.request.query_params)
    runs = _drawn_runs(visit, view)
    visit.store.prefetch(runs, ["metrics"])
    existing = {name for run in runs for name in run.metrics}
    for text in _quantities(visit.asked("panel"), runs):
        for name in Quantity.of(text, existing).names:
            check_number(runs, name, joined=view.joined and not view.group)
    panel = _made(visit, view, runs, MAX_POINTS, (None, None))
    optional = [
        (title, name)
        for title, name in (("low", "low"), ("high", "high"), ("as_logged", "raw"))
        if any(getattr(curve, name) is not None for curve in panel.curves)
    ]
    tables = []
    for curve in panel.curves:
        shown = between(visit, curve.x)
        columns = [curve.x, curve.y, *(getattr(curve, name) for _, name in optional)]
        tables.append(Table(curve.label, [None if column is None else column[shown] for column in columns]))
    head = ["curve", _X_COLUMNS.get(view.x, view.x), "value", *(title for title, _ in optional)]
    return csv_response(panel.metric, head, tables)


ROUTES = [page(_PANEL, _panel), page("/workspace/points", _points)]
