"""The workspace: a page of runs, which the store finds, sorts and counts, beside their curves."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from sacristan.runs.board.answers import json_response, look_again_s, watched
from sacristan.runs.board.colours import colour_of, colours_of
from sacristan.runs.board.panels_page import MAX_DRAWN, Section, first_panels, panels_url, sections_of
from sacristan.runs.board.rendering import render
from sacristan.runs.board.views import RunsView
from sacristan.runs.board.visits import Visit, page
from sacristan.runs.comparison.grouping import group_runs
from sacristan.runs.errors import ComparisonError, FilterError, StoreError
from sacristan.runs.query.names import COMMON_FIELDS, full_name, short_name
from sacristan.runs.query.texts import is_number
from sacristan.runs.stores.run import Run

__all__ = ["ROUTES"]

_COLUMNS = ("status", "start", "duration", "name", "tags")
_NEEDED = ("status", "tags", "uid", "display_name")
# Greatest age of what other processes changed in ended runs, when a page opens; it then looks for changes at once.
_SHOWN_FOR_S = 60.0
# When it looks for changes, all runs of a folder are looked at in a twentieth of the time at most.
_SHARE = 20
# Greatest age of the list of damaged runs.
_BROKEN_FOR_S = 60.0
# Larger numbers are scaled before they are squared.
_LARGE = 1e150
# Runs in groups, and groups that a page shows.
_MAX_GROUPED, _MAX_GROUPS = 20_000, 500
# A page counts this many runs beyond those that it shows before it is sent, and all when it looks for changes.
_COUNTED = 1_000


@dataclasses.dataclass(frozen=True)
class _Shown:
    """Values of the template of a view.

    Attributes:
        rows: The runs, each with its values by column.
        groups: The groups that are shown instead; None for single runs.
        is_more: Whether there may be more than `total`.
        broken: Damaged runs, with the reasons.
        sections: Metrics that the runs have; see `sacristan.runs.board.panels_page`.
        url: URL that the panels share; empty without runs.
    """

    columns: Sequence[str]
    rows: Sequence[tuple[Run, list[Any]]] = ()
    groups: Sequence[Mapping[str, Any]] | None = None
    total: int = 0
    is_more: bool = False
    numeric: Collection[str] = ()
    broken: Sequence[tuple[str, str]] = ()
    colours: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sections: Sequence[Section] = ()
    url: str = ""


# ---------------------------------------------------------------------- looking


def _runs(visit: Visit) -> Response:
    """Answer with the page of a view."""
    view = RunsView.of(visit.request.query_params)
    if "add" in visit.request.query_params:
        view = view.adding(visit.asked("add"))  # the page then puts the view's own address into the address bar
    problem = ""
    try:
        visit.store.max_age_s = _SHOWN_FOR_S
        # Counting all runs reads none; counting those of a filter does.
        limit = _COUNTED * (1 + view.page * view.SIZE // _COUNTED) if view.is_filtered else None
        shown = _grouped(visit, view) if view.group else _ungrouped(visit, view, limit)
    except (FilterError, ComparisonError) as error:
        problem, shown = str(error), _Shown(view.column)
    finally:
        visit.store.max_age_s = 0.0
    first = first_panels(view, shown.url, shown.sections)
    common = {"view": view, "problem": problem, "first": first, "max_drawn": MAX_DRAWN}
    return visit.render("runs.html", 400 if problem else 200, **common, **vars(shown))


def _rows(visit: Visit) -> Response:
    """Answer with rows and panels of a view, or with "not changed", to a page that watches them."""
    started = time.perf_counter()
    view = RunsView.of(visit.request.query_params)
    visit.store.max_age_s = min(_SHOWN_FOR_S, _SHARE * visit.store.backend.look_s)
    try:
        shown = _grouped(visit, view) if view.group else _ungrouped(visit, view)
    finally:
        visit.store.max_age_s = 0.0
    body = render("watched_runs.html", board=visit.board, view=view, **vars(shown))
    return watched(visit.request, body, look_again_s(started), x_total=str(shown.total))


def _ungrouped(visit: Visit, view: RunsView, limit: int | None = None) -> _Shown:
    """Return the rows of a view, and the number of matching runs, counted up to a limit."""
    fetched = [*(view.column or (*_COLUMNS, "result")), *_NEEDED]
    runs = [run.listed() for run in visit.store.find(view.tree, view.sort, view.SIZE, fetched, view.offset)]
    visit.store.prefetch(runs, ["metrics"])
    columns = view.column or _usual_columns(visit, runs, view)
    # All at once: the settings among them may be remembered, so that no config was read for them.
    visit.store.prefetch(runs, list(map(full_name, columns)))
    rows = [(run, [_value(run, name) for name in columns]) for run in runs]
    is_last = 0 < len(runs) < view.SIZE
    total = view.offset + len(runs) if is_last else visit.store.count(view.tree, limit)
    return _Shown(
        columns=columns,
        rows=rows,
        total=total,
        is_more=limit is not None and total >= limit,
        numeric={name for place, name in enumerate(columns) if _is_numeric([values[place] for _, values in rows])},
        broken=visit.store.unreadable(_BROKEN_FOR_S),
        colours=colours_of(runs),
        sections=sections_of(runs, view.panel),
        url=panels_url(view, runs),
    )


def _usual_columns(visit: Visit, runs: Sequence[Run], view: RunsView) -> tuple[str, ...]:
    """Return the default columns: those that distinguish the runs first."""
    telling = ["display_name"] if any(_value(run, "display_name") for run in runs) else []
    telling += ["name"] if len({_value(run, "name") for run in runs}) > 1 else []
    more = [name for name in ("result", view.sort_name) if any(_value(run, name) is not None for run in runs)]
    more = [name for name in more if name not in ("id", *_COLUMNS)]
    usual = [*telling, "status", *more, *visit.board.labels.telling(runs)]
    return tuple(dict.fromkeys([*usual, *_COLUMNS]))


def _value(run: Run, name: str) -> Any:
    try:
        return run.tags if name == "tags" else run.id if name == "id" else run.get(name)
    except StoreError:  # damaged since it was found
        return None


def _is_numeric(values: Sequence[Any]) -> bool:
    there = [value for value in values if value is not None]
    return bool(there) and all(map(is_number, there))


# ---------------------------------------------------------------------- groups


def _grouped(visit: Visit, view: RunsView) -> _Shown:
    """Return the runs of a view in groups, each with mean and deviation of the numeric columns."""
    names = view.column or ("duration", "result", *_some_metrics(visit))
    found = visit.store.find(view.tree, view.sort, _MAX_GROUPED, [*view.fields_by, *names])
    runs = [run.listed() for run in found]
    for name in view.fields_by if runs else ():
        visit.store.check_field(name)
    groups = group_runs(runs, view.fields_by)[0] if runs else []
    visit.store.prefetch(runs[:MAX_DRAWN], ["metrics"])
    numbers: dict[str, list[list[float]]] = {}
    for name in names:
        values = [[_as_float(value) for run in group.runs if is_number(value := _value(run, name))] for group in groups]
        if any(values):
            numbers[name] = values
    rows = [
        {
            "key": group.label,
            "label": group.name,
            "url": view.of_group(group.values),
            "count": len(group.runs),
            "cells": [_mean_and_std(values[place]) for values in numbers.values()],
        }
        for place, group in enumerate(groups[:_MAX_GROUPS])
    ]
    return _Shown(
        tuple(numbers),
        groups=rows,
        total=len(runs),
        numeric=numbers.keys(),
        broken=visit.store.unreadable(_BROKEN_FOR_S),
        colours={group.label: colour_of(group.label) for group in groups[:_MAX_GROUPS]},
        sections=sections_of(runs, view.panel),
        url=panels_url(view, runs),
    )


def _some_metrics(visit: Visit) -> list[str]:
    names = [short_name(name) for name in visit.store.fields() if name.startswith("summary.")]
    return [name for name in names if name.endswith(".last") and not name.startswith("system/")][:4]


def _mean_and_std(values: Sequence[float]) -> tuple[float, float | None, int] | None:
    """Return mean, standard deviation and number of the finite values; None without any."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    # Sums and squares of the largest numbers overflow.
    most = max(map(abs, finite))
    scale = most if most > _LARGE else 1.0
    scaled = [value / scale for value in finite]
    std = statistics.stdev(scaled) * scale if len(finite) > 1 else None
    return statistics.fmean(scaled) * scale, std, len(finite)


def _as_float(value: float) -> float:
    """Return a number as a float; integers that are too large become infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _fields(visit: Visit) -> Response:
    """Answer with the fields that columns can show."""
    names = {*visit.store.fields(), *COMMON_FIELDS} - {"config", "info", "provenance", "summary", "tags"}
    shown = sorted((short_name(name) for name in names if not name.startswith("tags.")), key=str.lower)
    return json_response({"fields": ["tags", *shown][:20_000]})


ROUTES = [page("/runs", _runs), page("/list/rows", _rows), page("/list/fields", _fields)]
