"""Content of the charts of any runs; see `runs.board.charts`."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from runs.board.answers import look_again_s
from runs.board.charts import Chart
from runs.board.colours import colour_of, colours_of
from runs.board.views import RunsView
from runs.board.visits import Visit
from runs.comparison.grouping import group_runs
from runs.errors import PlotError, StoreError
from runs.query.names import TIMES, full_name
from runs.query.texts import count_text, is_number, list_text
from runs.query.times import time_of
from runs.stores.run import Run
from runs.stores.settings import show, telling_settings
from runs.sweeps.views.importances import MOST_RUNS, importances_over

__all__ = ["chart_document", "plain_value"]

# Runs that a chart draws, and the least that importances are estimated from.
_MAX_RUNS, _LEAST_RUNS = 2_000, 10
_MAX_SETTINGS = 12
# Greater numbers are infinite for the forests that importances are estimated by.
_LARGE = 1e30
_NONE = "none"
# Seconds until a page asks for a chart again.
_LOOK_S = 5.0
_CAUTION = (
    "settings that vary together share their importance, and no share is a causal claim: "
    "whatever else differed between the runs may explain it"
)


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """Runs of a chart.

    Attributes:
        runs: The runs.
        keys: Of each, what its eye is called: its id, or the label of its group.
        notes: What the chart leaves out.
    """

    runs: Sequence[Run]
    keys: Sequence[str]
    notes: Sequence[str]


def chart_document(visit: Visit, view: RunsView, chart: Chart) -> dict[str, Any]:
    """Return what a chart draws, as charts.js takes it.

    Args:
        visit: The request.
        view: The view, which chooses the runs, and groups them.
        chart: The chart.

    Raises:
        FilterError, ComparisonError: If no run has a field.
        PlotError: If the runs are too few for importances.
    """
    started = time.perf_counter()
    drawn = _drawn(visit, view, chart)
    found = _importances(chart, drawn) if chart.kind == "importances" else _rows(chart, drawn, bool(view.group))
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
    """Return the runs with their fields; those that lack a field on an axis are left out."""
    rows = [[_value(run, name) for name in chart.fields] for run in drawn.runs]
    # A numeric third field of a scatter is an axis, too.
    is_named = chart.kind == "scatter" and any(isinstance(value, str) for row in rows for value in row[2:])
    axes = 2 if is_named else len(chart.fields)
    # A line of parallel coordinates has gaps; the other kinds need each axis.
    is_whole = any if chart.kind == "parallel" else all
    kept = [place for place, row in enumerate(rows) if is_whole(value is not None for value in row[:axes])]
    notes = [count_text(len(kept), "run"), *drawn.notes]
    if num := len(rows) - len(kept):
        lack = "lacks" if num == 1 else "lack"
        notes.append(f"without {count_text(num, 'run')} that {lack} {' or '.join(chart.fields[:axes])}")
    rows, runs = [rows[place] for place in kept], [drawn.runs[place] for place in kept]
    keys = [drawn.keys[place] for place in kept]
    own = {} if is_grouped else colours_of(runs)
    colours = [own.get(key) or colour_of(key) for key in keys]
    third = chart.fields[2] if chart.kind == "scatter" and len(chart.fields) > 2 else ""
    if is_named:  # the colours that groups by this field have
        rows = [[*row[:2], _NONE if row[2] is None else str(row[2])] for row in rows]
        colours = [colour_of(f"{third}={row[2]}") for row in rows]
    return {
        "fields": [{"name": name, "is_time": full_name(name) in TIMES} for name in chart.fields],
        "ids": [run.id for run in runs],
        "keys": keys,
        "colors": colours,
        "rows": rows,
        "grouped": is_grouped,
        "notes": notes,
    }


def _value(run: Run, name: str) -> float | str | None:
    try:
        value = " ".join(run.tags) if name == "tags" else run.id if name == "id" else run.get(name)
    except StoreError:  # damaged since it was found
        return None
    if full_name(name) in TIMES:
        found = time_of(value)
        return None if found is None else 1000 * found.replace(tzinfo=UTC).timestamp()
    return plain_value(value)


def plain_value(value: Any) -> float | str | None:
    """Return a finite number, or the short text of anything else; None for a missing or an infinite value.

    Args:
        value: A value of a record.
    """
    if value is None:
        return None
    if not is_number(value):
        return show(value)
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond all floats
        return None


# ---------------------------------------------------------------------- importances


def _importances(chart: Chart, drawn: _Drawn) -> dict[str, Any]:
    """Return the importances of settings for a result, with the cautions that belong to them."""
    result, *named = chart.fields
    values = {run: _value(run, result) for run in drawn.runs}
    results = {run: value for run, value in values.items() if is_number(value) and abs(value) < _LARGE}
    if len(results) < _LEAST_RUNS:
        got = f"got {count_text(len(results), 'run')} with a number as {result}"
        raise PlotError(f"{got}, expected at least {_LEAST_RUNS} to estimate importances; show more runs")
    if len(set(results.values())) == 1:
        raise PlotError(f"all {len(results)} runs have the same {result}: there is no variation to explain")
    names = named or [name for name in telling_settings(list(results)) if name != "seed"]
    columns = {name: _column(results, name) for name in names if name != result}
    used = {name: column for name, column in columns.items() if _tells(column)}
    if not used:
        raise PlotError(f"the {len(results)} runs differ in no setting that importances can be estimated of")
    names = list(used)[:_MAX_SETTINGS]
    notes = [f"estimated from {count_text(min(len(results), MOST_RUNS), 'run')}: {_CAUTION}", *drawn.notes]
    if unused := [name for name in columns if name not in used]:
        notes.append(f"left out, as they have one value, or too many names: {list_text(unused)}")
    if more := list(used)[_MAX_SETTINGS:]:
        notes.append(f"left out, as {_MAX_SETTINGS} settings are the maximum: {list_text(more)}")
    methods = _estimated(tuple(names), tuple(used[name] for name in names), tuple(results.values()))
    return {"fields": [{"name": result, "is_time": False}], "methods": methods, "notes": notes}


def _column(runs: Mapping[Run, Any], name: str) -> tuple[float | str, ...]:
    values = [_value(run, name) for run in runs]
    return tuple(_NONE if value is None else value for value in values)


def _tells(column: Sequence[float | str]) -> bool:
    """Tell whether a setting can be estimated: it varies, and its names are not as many as the runs."""
    num_values = len(set(column))
    if any(isinstance(value, str) for value in column):
        return 1 < num_values <= len(column) / 2
    return num_values > 1 and all(abs(value) < _LARGE for value in column if not isinstance(value, str))


@functools.lru_cache(maxsize=32)
def _estimated(
    names: tuple[str, ...], columns: tuple[tuple[float | str, ...], ...], results: tuple[float, ...]
) -> dict[str, dict[str, float]]:
    """Estimate once what pages that follow their runs ask for again and again."""
    return importances_over(dict(zip(names, columns, strict=True)), results)
