"""Content of the charts of runs; see `sacristan.runs.board.charts`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from sacristan.runs.board.answers import look_again_s
from sacristan.runs.board.chart_values import NONE, is_time, value_of
from sacristan.runs.board.charts import Chart
from sacristan.runs.board.colours import colour_of, colours_of
from sacristan.runs.board.importance_charts import importances_of
from sacristan.runs.board.views import RunsView
from sacristan.runs.board.visits import Visit
from sacristan.runs.comparison.grouping import group_runs
from sacristan.runs.query.texts import count_text
from sacristan.runs.stores.run import Run

__all__ = ["chart_document"]

_MAX_RUNS = 2_000
# Seconds until a page asks for a chart again.
_LOOK_S = 5.0


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """Runs of a chart.

    Attributes:
        keys: What identifies the eye button of each: the run's id, or the label of its group.
        notes: What the chart leaves out.
    """

    runs: Sequence[Run]
    keys: Sequence[str]
    notes: Sequence[str]


def chart_document(visit: Visit, view: RunsView, chart: Chart) -> dict[str, Any]:
    """Return the data of a chart, as charts.js takes it.

    The view chooses and groups the runs. A field that no run has raises FilterError or ComparisonError.
    """
    started = time.perf_counter()
    drawn = _drawn(visit, view, chart)
    if chart.kind == "importances":
        found = importances_of(chart, drawn.runs, drawn.notes)
    else:
        found = _rows(chart, drawn, bool(view.group))
    pause_s = look_again_s(started, _LOOK_S)
    return {"kind": chart.kind, "metric": visit.asked("panel"), "living": True, "look_again_s": pause_s, **found}


def _drawn(visit: Visit, view: RunsView, chart: Chart) -> _Drawn:
    fetched = [*chart.fields, *view.fields_by, "uid"]
    found = visit.store.find(view.tree, view.sort, _MAX_RUNS + 1, fetched)
    runs = [run.listed() for run in found[:_MAX_RUNS]]
    for name in chart.fields if runs else ():
        visit.store.check_field(name)
    notes = [f"the first {_MAX_RUNS:,} runs of the view"] if len(found) > _MAX_RUNS else []
    if not view.group:
        return _Drawn(runs, [run.id for run in runs], notes)
    groups, excluded = group_runs(runs, view.fields_by, view.fields_over)
    if excluded:
        notes.append(f"without {count_text(len(excluded), 'run')} that belong to no group")
    members = [(run, group.label) for group in groups for run in group.runs]
    return _Drawn([run for run, _ in members], [label for _, label in members], notes)


# ---------------------------------------------------------------------- runs and their fields


def _rows(chart: Chart, drawn: _Drawn, is_grouped: bool) -> dict[str, Any]:
    """Return the runs with their fields; those that lack a field on an axis are omitted."""
    rows = [[value_of(run, name) for name in chart.fields] for run in drawn.runs]
    is_named = chart.kind == "scatter" and _has_names(rows)
    axes = chart.fields[:2] if is_named else chart.fields
    # A line of parallel coordinates has gaps; the other kinds need each axis.
    is_whole = any if chart.kind == "parallel" else all
    kept = [place for place, row in enumerate(rows) if is_whole(value is not None for value in row[: len(axes)])]
    runs, keys = [drawn.runs[place] for place in kept], [drawn.keys[place] for place in kept]
    shown, colours = [rows[place] for place in kept], _colours(runs, keys, is_grouped)
    if is_named:
        shown, colours = _coloured_by_name(shown, chart.fields[2])
    return {
        "fields": [{"name": name, "is_time": is_time(name)} for name in chart.fields],
        "ids": [run.id for run in runs],
        "keys": keys,
        "colors": colours,
        "rows": shown,
        "grouped": is_grouped,
        "notes": [count_text(len(kept), "run"), *drawn.notes, *_left_out(len(rows) - len(kept), axes)],
    }


def _has_names(rows: Sequence[Sequence[Any]]) -> bool:
    """Tell whether the third field of a scatter holds texts; a numeric one is an axis, too."""
    return any(isinstance(value, str) for row in rows for value in row[2:])


def _coloured_by_name(rows: Sequence[Sequence[Any]], field: str) -> tuple[list[list[Any]], list[str]]:
    """Return the rows with the third field as text, and the colours of groups by this field."""
    named = [[*row[:2], NONE if row[2] is None else str(row[2])] for row in rows]
    return named, [colour_of(f"{field}={row[2]}") for row in named]


def _left_out(num: int, axes: Sequence[str]) -> list[str]:
    lack = "lacks" if num == 1 else "lack"
    return [f"without {count_text(num, 'run')} that {lack} {' or '.join(axes)}"] if num else []


def _colours(runs: Sequence[Run], keys: Sequence[str], is_grouped: bool) -> list[str]:
    own = {} if is_grouped else colours_of(runs)
    return [own.get(key) or colour_of(key) for key in keys]
