"""The workspace: a page of runs, which the store finds, sorts and counts, beside their curves; and its named views."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import QueryParams
from starlette.responses import RedirectResponse, Response

from sacristan.runs.board.access import Role
from sacristan.runs.board.charts import (
    MAX_DRAWN,
    Section,
    first_panels,
    metric_rank,
    panels_url,
    plain_value,
    sections_of,
)
from sacristan.runs.board.rendering import render
from sacristan.runs.board.views import RunsView
from sacristan.runs.board.visits import Visit, field_of, json_response, look_again_s, page, watched
from sacristan.runs.comparison import Group, group_runs
from sacristan.runs.errors import ComparisonError, FilterError
from sacristan.runs.query import COMMON_FIELDS, full_name, short_name
from sacristan.runs.query.texts import is_number
from sacristan.runs.stores import Run, SavedView

# What the names of these ranges begin with in a query; see `static/brushes.js`.
_BRUSH = "brush."
_COLUMNS = ("status", "start", "duration", "name", "tags")
_NEEDED = ("status", "tags", "uid", "display_name", "display_colour")
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


def _first_page(visit: Visit) -> Response:
    view = visit.store.views.default(visit.board.visitor.name)
    return RedirectResponse(_url(view.query) if view else RunsView().url())


def _url(query: str) -> str:
    """Return the URL of a query that anyone may have written into the store."""
    params = QueryParams(query[:20_000])
    url, brushes = RunsView.of(params).url(page=1), urlencode(_brushes(params.multi_items()))
    return f"{url}{'&' if '?' in url else '?'}{brushes}" if brushes else url


def _brushes(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the ranges of parallel coordinates, which only the browser reads."""
    return [pair for pair in pairs if pair[0].startswith(_BRUSH)]


def _views(visit: Visit) -> Response:
    views = visit.store.views.visible(visit.board.visitor.name)
    default = visit.store.views.default(visit.board.visitor.name)
    return json_response(
        {
            "views": [
                {
                    "name": view.name,
                    "url": _url(view.query),
                    "shared": not view.owner,
                    "default": view == default,
                    "version": view.version,
                }
                for view in views
            ]
        }
    )


def _save(visit: Visit) -> Response:
    pairs = parse_qsl(visit.given("query").removeprefix("?"))
    query = urlencode([*RunsView.of(QueryParams(pairs)).pairs("page"), *_brushes(pairs)])
    owner = "" if visit.given("shared") else visit.board.visitor.name
    since = datetime.now(UTC).isoformat() if visit.given("default") else ""
    view = SavedView(visit.given("name").strip(), query, owner, since)
    visit.store.views.save(view, visit.given("version"))
    return json_response({"done": f"view {view.name} saved"})


def _remove(visit: Visit) -> Response:
    """Remove a view if it still is the version that the visitor saw."""
    for view in visit.store.views.visible(visit.board.visitor.name):
        if view.version == visit.given("version"):
            visit.store.views.remove(view)
            return json_response({"done": f"view {view.name} removed"})
    raise FilterError("this view is gone; reload the list")


@dataclasses.dataclass(frozen=True)
class _Workspace:
    """Values of the template of a view."""

    columns: Sequence[str]
    rows: Sequence[tuple[Run, list[Any]]] = ()
    groups: Sequence[Mapping[str, Any]] | None = None  # the groups that are shown instead of rows; None for single runs
    total: int = 0
    is_more: bool = False  # whether there may be more than `total`
    numeric: Collection[str] = ()
    broken: Sequence[tuple[str, str]] = ()
    # The value of each run or group by which it is coloured.
    shades: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sections: Sequence[Section] = ()
    url: str = ""  # URL that the panels share; empty without runs


# ---------------------------------------------------------------------- looking


def _runs(visit: Visit) -> Response:
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
        problem, shown = str(error), _Workspace(view.column)
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


def _ungrouped(visit: Visit, view: RunsView, limit: int | None = None) -> _Workspace:
    """Return the rows of a view, and the number of matching runs, counted up to a limit."""
    if view.colour:
        visit.store.check_field(view.colour)
    fetched = [*(view.column or (*_COLUMNS, "result")), *([view.colour] if view.colour else []), *_NEEDED]
    runs = [run.listed() for run in visit.store.find(view.tree, view.sort, view.SIZE, fetched, view.offset)]
    visit.store.prefetch(runs, ["metrics"])
    columns = view.column or _usual_columns(visit, runs, view)
    # All at once: the settings among them may be remembered, so that no config was read for them.
    visit.store.prefetch(runs, list(map(full_name, columns)))
    rows = [(run, [field_of(run, name) for name in columns]) for run in runs]
    is_last = 0 < len(runs) < view.SIZE
    total = view.offset + len(runs) if is_last else visit.store.count(view.tree, limit)
    return _Workspace(
        columns=columns,
        rows=rows,
        total=total,
        is_more=limit is not None and total >= limit,
        numeric=_numeric(columns, [values for _, values in rows]),
        broken=visit.store.unreadable(_BROKEN_FOR_S),
        shades={run.id: plain_value(field_of(run, view.colour)) for run in runs} if view.colour else {},
        sections=sections_of(runs, view.panel),
        url=panels_url(view, runs),
    )


def _usual_columns(visit: Visit, runs: Sequence[Run], view: RunsView) -> tuple[str, ...]:
    """Return the default columns: those that distinguish the runs first, then the result."""
    telling = ["display_name"] if any(field_of(run, "display_name") for run in runs) else []
    telling += ["name"] if len({field_of(run, "name") for run in runs}) > 1 else []
    more = [name for name in ("result", view.sort_name) if any(field_of(run, name) is not None for run in runs)]
    more = [name for name in more if name not in ("id", *_COLUMNS)]
    usual = [*telling, *visit.board.labels.telling(runs), *more]
    return tuple(dict.fromkeys([*usual, *_COLUMNS]))


def _numeric(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> set[str]:
    """Return the columns that hold numbers only, and any."""
    cells = {name: [row[index] for row in rows if row[index] is not None] for index, name in enumerate(columns)}
    return {name for name, values in cells.items() if values and all(map(is_number, values))}


# ---------------------------------------------------------------------- groups


def _grouped(visit: Visit, view: RunsView) -> _Workspace:
    """Return the runs of a view in groups, each with mean and deviation of the numeric columns."""
    names = view.column or ("result", *_some_metrics(visit), "duration")
    coloured = [view.colour] if view.colour else []
    matching = visit.store.find(view.tree, view.sort, _MAX_GROUPED, [*view.fields_by, *names, *coloured])
    runs = [run.listed() for run in matching]
    for name in (*view.fields_by, *coloured) if runs else ():
        visit.store.check_field(name)
    groups = group_runs(runs, view.fields_by)[0] if runs else []
    visit.store.prefetch(runs[:MAX_DRAWN], ["metrics"])
    numbers: dict[str, list[list[float]]] = {}
    for name in names:
        values = [
            [_as_float(value) for run in group.runs if is_number(value := field_of(run, name))] for group in groups
        ]
        if any(values):
            numbers[name] = values
    rows = [
        {
            "key": group.label,
            "label": group.name,
            "url": view.of_group(group.values),
            "count": len(group.runs),
            "cells": [_mean_and_std(values[index]) for values in numbers.values()],
        }
        for index, group in enumerate(groups[:_MAX_GROUPS])
    ]
    return _Workspace(
        tuple(numbers),
        groups=rows,
        total=len(runs),
        numeric=numbers.keys(),
        broken=visit.store.unreadable(_BROKEN_FOR_S),
        shades={group.label: _shade(group, view.colour) for group in groups[:_MAX_GROUPS]} if view.colour else {},
        sections=sections_of(runs, view.panel),
        url=panels_url(view, runs),
    )


def _shade(group: Group, name: str) -> Any:
    """Return the value by which a group is coloured: the one that its runs share, or the mean of numbers."""
    values = [plain_value(field_of(run, name)) for run in group.runs]
    if len(set(values)) == 1:
        return values[0]
    numbers = _mean_and_std([value for value in values if is_number(value)])
    return numbers[0] if numbers else None


def _some_metrics(visit: Visit) -> list[str]:
    names = [short_name(name) for name in visit.store.fields() if name.startswith("summary.")]
    names = [name for name in names if name.endswith(".last") and not name.startswith("system/")]
    return sorted(names, key=metric_rank)[:4]


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
    names = {*visit.store.fields(), *COMMON_FIELDS} - {"config", "info", "provenance", "summary", "tags"}
    shown = sorted(filter(lambda name: not name.startswith("tags."), names), key=_field_rank)
    return json_response({"fields": [*map(short_name, shown), "tags"][:20_000]})


def _field_rank(name: str) -> tuple[int, int, str]:
    """Return the sort key of a full name: the result first, then settings, metrics and the run's own fields."""
    parts = ("result", "config", "summary")
    part = name.partition(".")[0]
    return parts.index(part) if part in parts else len(parts), name.count("."), name.lower()


ROUTES = [
    page("/", _first_page),
    page("/runs", _runs),
    page("/list/rows", _rows),
    page("/list/fields", _fields),
    page("/list/views", _views),
    page("/list/view", _save, "POST", Role.NOTE),
    page("/list/view/remove", _remove, "POST", Role.NOTE),
]
