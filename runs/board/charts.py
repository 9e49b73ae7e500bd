"""Charts in the workspace: panels of curves, other charts of runs, importances, and points of curves as CSV."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.responses import Response, StreamingResponse

from sacristan.runs.board.rendering import chosen_colour
from sacristan.runs.board.views import Chart, RunsView, is_chart
from sacristan.runs.board.visits import Visit, field_of, look_again_s, numbers_response, page
from sacristan.runs.comparison import group_runs
from sacristan.runs.comparison.curves import Ancestry, Quantity
from sacristan.runs.comparison.panels import CurveCache, make_panel
from sacristan.runs.drawing.curve import Curve, Panel
from sacristan.runs.errors import FilterError, PlotError, RunNotFoundError
from sacristan.runs.query import TIMES, full_name, split_names, time_of
from sacristan.runs.query.texts import cell_text, count_text, is_number, list_text
from sacristan.runs.stores import Run, runs_by
from sacristan.runs.stores.settings import show, telling_settings
from sacristan.runs.sweeps.views.study_view import MOST_RUNS, importances_over

# ---------------------------------------------------------------------- charts of runs

# The name of a missing value.
NONE = "none"
# The least number of runs that importances are estimated from.
_LEAST_RUNS = 10
_MAX_SETTINGS = 12
# Greater numbers are infinite for the forests that importances are estimated by.
_LARGE = 1e30
_CAUTION = (
    "settings that vary together share their importance, and no share is a causal claim: "
    "whatever else differed between the runs may explain it"
)
_MAX_RUNS = 2_000
# Seconds until a page asks for a chart again.
_LOOK_S = 5.0


def is_time(name: str) -> bool:
    """Tell whether a field is a time, which charts draw in milliseconds since 1970."""
    return full_name(name) in TIMES


def value_of(run: Run, name: str) -> float | str | None:
    """Return a field of a run: a number, a time in ms since 1970, a short text, or None, as for a damaged run."""
    value = field_of(run, name)
    if is_time(name):
        moment = time_of(value)
        return None if moment is None else 1000 * moment.replace(tzinfo=UTC).timestamp()
    return plain_value(" ".join(value) if name == "tags" and value is not None else value)


def plain_value(value: Any) -> float | str | None:
    """Return a finite number, or the short text of anything else; None for a missing or an infinite value."""
    if value is None:
        return None
    if not is_number(value):
        return show(value)
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond all floats
        return None


def importances_of(chart: Chart, runs: Sequence[Run], notes: Sequence[str]) -> dict[str, Any]:
    """Return the importances of settings for a result, by default of those that differ, and cautions."""
    result, *named = chart.fields
    values = {run: value_of(run, result) for run in runs}
    results = {run: value for run, value in values.items() if is_number(value) and abs(value) < _LARGE}
    _check_results(result, list(results.values()))
    names = named or [name for name in telling_settings(list(results)) if name != "seed"]
    columns = {name: _column(results, name) for name in names if name != result}
    used = {name: column for name, column in columns.items() if _tells(column)}
    if not used:
        raise PlotError(f"the {len(results)} runs differ in no setting that importances can be estimated of")
    names = list(used)[:_MAX_SETTINGS]
    said = [f"estimated from {count_text(min(len(results), MOST_RUNS), 'run')}: {_CAUTION}", *notes]
    if unused := [name for name in columns if name not in used]:
        said.append(f"left out, as they have one value, or too many names: {list_text(unused)}")
    if more := list(used)[_MAX_SETTINGS:]:
        said.append(f"left out, as {_MAX_SETTINGS} settings are the maximum: {list_text(more)}")
    methods = _estimated(tuple(names), tuple(used[name] for name in names), tuple(results.values()))
    return {"fields": [{"name": result, "is_time": False}], "methods": methods, "notes": said}


def _check_results(result: str, values: Sequence[float]) -> None:
    if len(values) < _LEAST_RUNS:
        got = f"got {count_text(len(values), 'run')} with a number as {result}"
        raise PlotError(f"{got}, expected at least {_LEAST_RUNS} to estimate importances; show more runs")
    if len(set(values)) == 1:
        raise PlotError(f"all {len(values)} runs have the same {result}: there is no variation to explain")


def _column(runs: Mapping[Run, Any], name: str) -> tuple[float | str, ...]:
    values = [value_of(run, name) for run in runs]
    return tuple(NONE if value is None else value for value in values)


def _tells(column: Sequence[float | str]) -> bool:
    """Tell whether a setting can be estimated: it varies, and has at most half as many names as there are runs."""
    num_values = len(set(column))
    if any(isinstance(value, str) for value in column):
        return 1 < num_values <= len(column) / 2
    return num_values > 1 and all(abs(value) < _LARGE for value in column if not isinstance(value, str))


@functools.lru_cache(maxsize=32)
def _estimated(
    names: tuple[str, ...], columns: tuple[tuple[float | str, ...], ...], results: tuple[float, ...]
) -> dict[str, dict[str, float]]:
    """Estimate importances; cached, because pages that follow their runs ask again and again."""
    return importances_over(dict(zip(names, columns, strict=True)), results)


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """Runs of a chart; `keys` identify the eye button of each: the run's id, or the label of its group."""

    runs: Sequence[Run]
    keys: Sequence[str]
    notes: Sequence[str]


def chart_document(visit: Visit, view: RunsView, chart: Chart) -> dict[str, Any]:
    """Return the data of a chart, as charts.js takes it; the view chooses and groups the runs."""
    started = time.perf_counter()
    drawn = _drawn(visit, view, chart)
    if chart.kind == "importances":
        content = importances_of(chart, drawn.runs, drawn.notes)
    else:
        content = _rows(chart, drawn, bool(view.group), view.colour)
    pause_s = look_again_s(started, _LOOK_S)
    return {"kind": chart.kind, "metric": visit.asked("panel"), "living": True, "look_again_s": pause_s, **content}


def _drawn(visit: Visit, view: RunsView, chart: Chart) -> _Drawn:
    fetched = [*chart.fields, *view.fields_by, "uid", *([view.colour] if view.colour else [])]
    matching = visit.store.find(view.tree, view.sort, _MAX_RUNS + 1, fetched)
    runs = [run.listed() for run in matching[:_MAX_RUNS]]
    for name in chart.fields if runs else ():
        visit.store.check_field(name)
    notes = [f"the first {_MAX_RUNS:,} runs of the view"] if len(matching) > _MAX_RUNS else []
    if not view.group:
        return _Drawn(runs, [run.id for run in runs], notes)
    groups, excluded = group_runs(runs, view.fields_by, view.fields_over)
    if excluded:
        notes.append(f"without {count_text(len(excluded), 'run')} that belong to no group")
    members = [(run, group.label) for group in groups for run in group.runs]
    return _Drawn([run for run, _ in members], [label for _, label in members], notes)


def _rows(chart: Chart, drawn: _Drawn, is_grouped: bool, colour: str) -> dict[str, Any]:
    """Return the runs with their fields, without those that lack one on an axis; the field `colour` colours them."""
    rows = [[value_of(run, name) for name in chart.fields] for run in drawn.runs]
    # A third field of texts colours the points of a scatter; a numeric one is an axis, too.
    is_named = chart.kind == "scatter" and any(isinstance(value, str) for row in rows for value in row[2:])
    axes = chart.fields[:2] if is_named else chart.fields
    # A line of parallel coordinates has gaps; the other kinds need each axis.
    is_whole = any if chart.kind == "parallel" else all
    kept = [index for index, row in enumerate(rows) if is_whole(value is not None for value in row[: len(axes)])]
    runs, keys = [drawn.runs[index] for index in kept], [drawn.keys[index] for index in kept]
    shown = [rows[index] for index in kept]
    if is_named:
        shown = [[*row[:2], NONE if row[2] is None else str(row[2])] for row in shown]
    num_lacking = len(rows) - len(kept)
    lack = f"{count_text(num_lacking, 'run')} that {'lacks' if num_lacking == 1 else 'lack'}"
    left_out = [f"without {lack} {' or '.join(axes)}"] if num_lacking else []
    return {
        "fields": [{"name": name, "is_time": is_time(name)} for name in chart.fields],
        "ids": [run.id for run in runs],
        "keys": keys,
        "rows": shown,
        **({"shades": [value_of(run, colour) for run in runs]} if colour else {}),
        "grouped": is_grouped,
        "notes": [count_text(len(kept), "run"), *drawn.notes, *left_out],
    }


# Points that one request reads, and rows of a piece of the answer.
MAX_POINTS = 2_000_000
_PIECE = 10_000
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
_MORE_COLUMNS = {"low": "low", "high": "high", "as_logged": "raw", "step": "steps", "time_s": "times"}
_X_COLUMNS = {"time": "time_s", "wall": "wall_time_s"}
Section = tuple[str, list[str]]


# ---------------------------------------------------------------------- all points as CSV


@dataclasses.dataclass(frozen=True)
class CurveTable:
    """Rows of a CSV file: (n,) numbers for each further column; None for empty cells."""

    label: str
    columns: Sequence[np.ndarray | None]


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
    names = sorted({name for run in runs[:MAX_DRAWN] for name in run.metrics}, key=metric_rank)[:_MAX_METRICS]
    sections: dict[str, list[str]] = {PINNED: list(pinned)} if pinned and runs else {}
    for name in names:
        if name in pinned:
            continue
        sections.setdefault(_prefix(name), []).append(name)
    return list(sections.items())


def _prefix(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def metric_rank(name: str) -> tuple[bool, bool, str, bool, str]:
    """Return the sort key of a metric: validations first, those of the machine last, losses first in each section."""
    prefix = _prefix(name)
    return prefix == "system", prefix not in ("val", "valid", "validation"), prefix, "loss" not in name, name


def panels_url(view: RunsView, runs: Sequence[Run]) -> str:
    """Return the URL that all panels of a view share, without panel and chart form; empty without runs."""
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
    runs, notes = _present_runs(visit, view)
    # First, as `make_panel` copies the runs with all that they hold.
    visit.store.prefetch(
        runs, ["metrics", "uid", "status", "start_time", "display_name", "heartbeat", "stop_time", "display_colour"]
    )
    num_points = max(_LEAST_OF_A_CURVE, min(_MOST_OF_A_CURVE, _MAX_ANSWERED // max(1, len(runs))))
    panel = _made(visit, view, runs, num_points, (visit.bound("from"), visit.bound("to")), visit.board.curves)
    return numbers_response(
        {
            "metric": panel.metric,
            "x": view.x,
            "x_label": panel.x_label,
            "notes": [*panel.notes, *notes],
            "labels": {} if view.group else {run.id: label for run, label in visit.board.labels.of(runs).items()},
            "chosen": {} if view.group else {run.id: colour for run in runs if (colour := chosen_colour(run))},
            "parts": _quantities(panel.metric, runs),
            "curves": [_document(curve) for curve in panel.curves],
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


def _present_runs(visit: Visit, view: RunsView) -> tuple[list[Run], list[str]]:
    """Return the runs to draw without those that were removed while the page showed them, and a note on these."""
    try:
        return _drawn_runs(visit, view), []
    except RunNotFoundError:
        left = runs_by(visit.store, view.run)
        if not left:
            raise
        gone = list_text(key for key in view.run if key not in left)
        return [left[key].listed() for key in dict.fromkeys(view.run) if key in left], [f"runs not found: {gone}"]


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


def _document(curve: Curve) -> dict[str, Any]:
    parts = {name: getattr(curve, name) for name in ("x", "y", "low", "high", "raw")}
    return {
        "key": curve.key,
        "label": curve.label,
        "part": curve.part,
        **({"inherited": curve.num_inherited} if curve.num_inherited else {}),
        **{name: values for name, values in parts.items() if values is not None},
    }


def _panel_points(visit: Visit) -> Response:
    view = RunsView.of(visit.request.query_params)
    runs = _drawn_runs(visit, view)
    visit.store.prefetch(runs, ["metrics"])
    existing = {name for run in runs for name in run.metrics}
    for text in _quantities(visit.asked("panel"), runs):
        for name in Quantity.of(text, existing).names:
            check_number(runs, name, joined=view.joined and not view.group)
    panel = _made(visit, view, runs, MAX_POINTS, (None, None))
    x = _X_COLUMNS.get(view.x, view.x)
    optional = [
        (title, name)
        for title, name in _MORE_COLUMNS.items()
        if title != x and any(getattr(curve, name) is not None for curve in panel.curves)
    ]
    tables = []
    for curve in panel.curves:
        shown = between(visit, curve.x)
        columns = [curve.x, curve.y, *(getattr(curve, name) for _, name in optional)]
        tables.append(CurveTable(curve.label, [None if column is None else column[shown] for column in columns]))
    head = ["curve", x, "value", *(title for title, _ in optional)]
    return csv_response(panel.metric, head, tables)


ROUTES = [
    page(_PANEL, _panel),
    page("/workspace/points", _panel_points),
]
