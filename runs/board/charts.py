"""Charts of runs in the workspace: their data, and importances of settings for a result."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from sacristan.runs.board.views import Chart, RunsView
from sacristan.runs.board.visits import Visit, field_of, look_again_s
from sacristan.runs.comparison.grouping import group_runs
from sacristan.runs.errors import PlotError
from sacristan.runs.query.names import TIMES, full_name
from sacristan.runs.query.texts import count_text, is_number, list_text
from sacristan.runs.query.times import time_of
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.settings import show, telling_settings
from sacristan.runs.sweeps.views.study_view import MOST_RUNS, importances_over

__all__ = ["NONE", "chart_document", "importances_of", "is_time", "plain_value", "value_of"]

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
    """Return a field of a run: a number, a time in milliseconds since 1970, a short text, or None.

    A damaged run has no value.
    """
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
    """Return the importances of settings for a result, and the cautions that apply to them.

    A chart without settings uses those in which the runs differ. Raises PlotError if the runs are too few, or do not
    differ.
    """
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
    """Runs of a chart.

    Attributes:
        keys: What identifies the eye button of each: the run's id, or the label of its group.
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


# ---------------------------------------------------------------------- runs and their fields


def _rows(chart: Chart, drawn: _Drawn, is_grouped: bool, colour: str) -> dict[str, Any]:
    """Return the runs with their fields; those that lack a field on an axis are omitted.

    `colour` is the field that colours them, if any.
    """
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
