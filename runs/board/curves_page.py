"""Panels of curves in the workspace, and the points of curves: as many as a plot has pixels, or all of them as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.responses import Response, StreamingResponse

from sacristan.observers.record.points.points import Series
from sacristan.runs.board.charts import chart_document
from sacristan.runs.board.rendering import colour_of, colours_of
from sacristan.runs.board.views import Chart, RunsView, is_chart
from sacristan.runs.board.visits import Visit, json_response, look_again_s, numbers_response, page
from sacristan.runs.comparison.curves import Ancestry, Quantity, joined_series, smoothed
from sacristan.runs.comparison.panels import CurveCache, make_panel
from sacristan.runs.drawing.curve import Curve, Panel, pixels
from sacristan.runs.errors import FilterError, PlotError
from sacristan.runs.query.names import split_names
from sacristan.runs.query.texts import cell_text, is_number
from sacristan.runs.stores.run import Run

__all__ = ["MAX_DRAWN", "MAX_POINTS", "ROUTES", "Section", "between", "first_panels", "panels_url", "sections_of"]

# Points that one request reads, and rows of a piece of the answer.
MAX_POINTS = 2_000_000
_PIECE = 10_000
_MIN_PIXELS, _USUAL_PIXELS, _MAX_PIXELS = 16, 500, 8_000


# ---------------------------------------------------------------------- what a plot draws
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


def _series(visit: Visit) -> Response:
    """Answer with the points that draw a metric, smoothed or not, or the part of it between two steps or times."""
    started = time.perf_counter()
    run = visit.store.get(visit.asked("run"))
    series, num_before = _asked_series(visit, run)
    positions = series.times if visit.asked("axis") == "times" else series.steps
    order = np.argsort(positions, kind="stable")
    order = order[np.isfinite(positions[order])]  # a run of stock Sacred may lack times
    num_pixels = visit.number("pixels", _USUAL_PIXELS, _MIN_PIXELS, _MAX_PIXELS)
    bounds, log_y = (visit.bound("from"), visit.bound("to")), bool(visit.asked("log"))
    values = series.values[order]
    chosen = pixels(positions[order], values, num_pixels, *bounds, log_y=log_y)
    weight = visit.bound("smoothing", "a number from 0 to below 1") or 0.0
    averages = smoothed(values, weight)
    if weight:  # averages are of all points; take those that draw either curve
        chosen = np.union1d(chosen, pixels(positions[order], averages, num_pixels, *bounds, log_y=log_y))
    return json_response(
        {
            "steps": series.steps[order][chosen].tolist(),
            "values": _with_gaps(values[chosen]),
            "smoothed": _with_gaps(averages[chosen]) if weight else None,
            "times": series.times[order][chosen].tolist(),
            "inherited": int(np.searchsorted(positions[order][chosen], np.nanmin(positions[num_before:])))
            if 0 < num_before < len(series)
            else 0,
            "count": len(series),
            "living": run.is_living,
            "look_again_s": look_again_s(started),
        }
    )


def _asked_series(visit: Visit, run: Run) -> tuple[Series, int]:
    """Return the points of the metric, after those of the runs it was started from, and the number of the latter."""
    name = visit.asked("metric")
    own = run.metric(name)
    if not visit.asked("joined"):
        return own, 0
    pieces = Ancestry([run]).pieces(run, own, lambda parent: parent.metric(name) if name in parent.metrics else None)
    return joined_series(pieces), sum(len(series) for _, series in pieces[:-1])


def _with_gaps(values: np.ndarray) -> list[float | None]:
    """Return numbers for JSON; non-finite ones become gaps in the curve."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


# ---------------------------------------------------------------------- all points as CSV


@dataclasses.dataclass(frozen=True)
class CurveTable:
    """Rows of a CSV file: (n,) numbers for each further column; None for empty cells."""

    label: str
    columns: Sequence[np.ndarray | None]


def _points(visit: Visit) -> Response:
    """Answer with the points of a metric of one run, between two steps or times, as they were logged."""
    run = visit.store.get(visit.asked("run"))
    name = visit.asked("metric")
    check_number([run], name, joined=bool(visit.asked("joined")))
    series, _ = _asked_series(visit, run)
    shown = between(visit, series.times if visit.asked("axis") == "times" else series.steps)
    table = CurveTable(name, [series.steps[shown], series.times[shown], series.values[shown]])
    return csv_response(f"run_{run.id}_{name}", ["name", "step", "time_s", "value"], [table])


def check_number(runs: Sequence[Run], metric: str, *, joined: bool = False) -> None:
    """Reject a request for more than `MAX_POINTS` points; `joined` counts the runs' ancestors, too."""
    ancestry = Ancestry(runs if joined else ())
    read = [*runs, *(parent for run in runs for parent, _ in ancestry.of(run))]
    num = sum(_num_points(run, metric) for run in read)
    if num > MAX_POINTS:
        raise PlotError(
            f"got {num:,} points of {metric}, expected {MAX_POINTS:,} at most in one file; "
            "choose fewer runs, or write: sacristan metrics RUN NAME --csv"
        )


def _num_points(run: Run, metric: str) -> int:
    count = run.summary.get(metric, {}).get("count")
    if is_number(count) and isinstance(count, int):  # a foreign record may hold anything
        return count
    return len(run.metric(metric)) if metric in run.metrics else 0


def between(visit: Visit, positions: np.ndarray) -> np.ndarray:
    """Tell which of the (n,) positions, in steps or seconds, are in the range that the URL asks for."""
    low, high = visit.bound("from"), visit.bound("to")
    shown = np.ones(len(positions), bool)
    if low is not None:
        shown &= positions >= low
    if high is not None:
        shown &= positions <= high
    return shown


def csv_response(name: str, head: Sequence[str], tables: Sequence[CurveTable]) -> Response:
    """Return tables as one CSV file; the first column is that of the labels, `name` has no suffix."""
    file = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:100]
    headers = {"content-disposition": f'attachment; filename="{file}.csv"'}
    return StreamingResponse(_pieces(head, tables), media_type="text/csv; charset=utf-8", headers=headers)


def _pieces(head: Sequence[str], tables: Sequence[CurveTable]) -> Iterator[str]:
    yield _text([head])
    for table in tables:
        num = max((len(column) for column in table.columns if column is not None), default=0)
        for start in range(0, num, _PIECE):
            size = min(_PIECE, num - start)
            parts = [
                [""] * size if column is None else column[start : start + size].tolist() for column in table.columns
            ]
            yield _text([(table.label, *row) for row in zip(*parts, strict=True)])


def _text(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((cell_text(str(first)), *rest) for first, *rest in rows)
    return text.getvalue()


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


def _panel_points(visit: Visit) -> Response:
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
        tables.append(CurveTable(curve.label, [None if column is None else column[shown] for column in columns]))
    head = ["curve", _X_COLUMNS.get(view.x, view.x), "value", *(title for title, _ in optional)]
    return csv_response(panel.metric, head, tables)


ROUTES = [
    page("/series", _series),
    page("/points", _points),
    page(_PANEL, _panel),
    page("/workspace/points", _panel_points),
]
