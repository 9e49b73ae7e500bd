"""Importances of settings for a result, over any runs; see `sacristan.runs.board.charts`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from sacristan.runs.board.chart_values import NONE, value_of
from sacristan.runs.board.charts import Chart
from sacristan.runs.errors import PlotError
from sacristan.runs.query.texts import count_text, is_number, list_text
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.settings import telling_settings
from sacristan.runs.sweeps.views.study_view import MOST_RUNS, importances_over

__all__ = ["importances_of"]

# The least number of runs that importances are estimated from.
_LEAST_RUNS = 10
_MAX_SETTINGS = 12
# Greater numbers are infinite for the forests that importances are estimated by.
_LARGE = 1e30
_CAUTION = (
    "settings that vary together share their importance, and no share is a causal claim: "
    "whatever else differed between the runs may explain it"
)


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
