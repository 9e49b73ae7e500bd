"""The page of all runs: found, sorted, grouped and paged by the store."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from runs.board.rendering import render
from runs.board.runs_view import RunsView
from runs.board.visits import Visit, json_response, look_again_s, page, version_of, watched
from runs.comparison.grouping import group_runs
from runs.errors import ChangedError, FilterError, StoreError
from runs.query.names import COMMON_FIELDS, full_name, short_name
from runs.query.texts import count_text, is_number
from runs.stores.run import Run
from runs.stores.settings import telling_settings

__all__ = ["ROUTES"]

_COLUMNS = ("name", "status", "start", "duration")
_NEEDED = ("status", "tags")
# A page may show the runs as they were so many seconds ago, as it looks for changes when it is there.
_SHOWN_FOR_S = 10.0
# And of the list of those that cannot be read, of which there are hardly ever any.
_BROKEN_FOR_S = 60.0
# Numbers from here on are scaled before they are squared.
_LARGE = 1e150
_MAX_GROUPED = 20_000
# A page counts so many runs, and as many beyond those that it shows, before it is sent; the rest when it watches.
_COUNTED = 1_000
_MAX_CHANGED = 1_000


# ---------------------------------------------------------------------- looking


def _runs(visit: Visit) -> Response:
    """Answer with the page of a view."""
    view = RunsView.of(visit.request.query_params)
    if "add" in visit.request.query_params:
        view = view.adding(visit.asked("add"))  # the page puts the view's own address in the place of this one
    try:
        if view.group:
            return visit.render("runs.html", view=view, problem="", **_grouped(visit, view))
        visit.store.max_age_s = _SHOWN_FOR_S
        # All runs are counted without looking at them; those of a filter are not.
        limit = _COUNTED * (1 + view.page * view.size // _COUNTED) if view.filter() else None
        return visit.render("runs.html", view=view, problem="", **_listed(visit, view, limit))
    except FilterError as error:
        empty: dict[str, Any] = {
            "columns": list(view.columns),
            "rows": [],
            "groups": None,
            "total": 0,
            "is_more": False,
            "numeric": set(),
            "broken": [],
        }
        return visit.render("runs.html", 400, view=view, problem=str(error), **empty)
    finally:
        visit.store.max_age_s = 0.0


def _rows(visit: Visit) -> Response:
    """Answer with the rows of a view alone, or that they are as they were, to a page that watches them."""
    started = time.perf_counter()
    view = RunsView.of(visit.request.query_params)
    listed = _listed(visit, view)
    body = render("rows.html", board=visit.board, view=view, **listed)
    return watched(visit, body, look_again_s(started), x_total=str(listed["total"]))


def _listed(visit: Visit, view: RunsView, limit: int | None = None) -> dict[str, Any]:
    """Return the rows of a view, and of how many runs they are, counted up to a limit."""
    wanted = view.columns or (*_COLUMNS, "result", "tags")
    offset = (view.page - 1) * view.size
    found = [run.listed() for run in visit.store.find(view.filter(), view.sort, view.size, [*wanted, *_NEEDED], offset)]
    columns = list(view.columns or _usual_columns(found, view))
    rows = [(run, [_value(run, name) for name in columns]) for run in found]
    shown = [[row[1][index] for row in rows] for index in range(len(columns))]
    numeric = {name for name, values in zip(columns, shown, strict=True) if _is_numeric(values)}
    broken = visit.store.unreadable(_BROKEN_FOR_S)
    is_last = 0 < len(found) < view.size
    total = offset + len(found) if is_last else visit.store.count(view.filter(), limit)
    return {
        "columns": columns,
        "rows": rows,
        "groups": None,
        "total": total,
        "is_more": limit is not None and total >= limit,
        "numeric": numeric,
        "broken": broken,
    }


def _usual_columns(found: Sequence[Run], view: RunsView) -> list[str]:
    """Return the usual columns, what the runs are sorted by, and settings by which people know them apart."""
    sorted_by = short_name(full_name(view.sort.removeprefix("-")))
    more = [name for name in (sorted_by, "result") if any(_value(run, name) is not None for run in found)]
    return list(dict.fromkeys([*_COLUMNS, *(name for name in more if name != "id"), *telling_settings(found), "tags"]))


def _value(run: Run, name: str) -> Any:
    try:
        return run.tags if name == "tags" else run.id if name == "id" else run.get(name)
    except StoreError:  # damaged since it was found
        return None


def _is_numeric(values: Sequence[Any]) -> bool:
    there = [value for value in values if value is not None]
    return bool(there) and all(map(is_number, there))


# ---------------------------------------------------------------------- groups


def _grouped(visit: Visit, view: RunsView) -> dict[str, Any]:
    """Return the runs of a view in groups, each with mean and deviation of the columns that are numbers."""
    names = view.columns or ("duration", "result", *_some_metrics(visit))
    runs = [run.listed() for run in visit.store.find(view.filter(), None, _MAX_GROUPED, [view.group, *names])]
    if runs:
        visit.store.check_field(view.group)
    kept: dict[str, list[list[float]]] = {}
    groups = group_runs(runs, [view.group])[0] if runs else []
    for name in names:
        values = [[_as_float(value) for run in group.runs if is_number(value := _value(run, name))] for group in groups]
        if any(values):
            kept[name] = values
    rows = [
        {
            "label": group.name,
            "url": view.of_group(group.label, group.values[view.group]),
            "count": len(group.runs),
            "cells": [_mean_and_std(kept[name][index]) for name in kept],
        }
        for index, group in enumerate(groups)
    ]
    broken = visit.store.unreadable(_BROKEN_FOR_S)
    return {
        "columns": list(kept), "rows": [], "groups": rows, "total": len(runs), "numeric": set(kept), "broken": broken
    }  # fmt: skip


def _some_metrics(visit: Visit) -> list[str]:
    names = [short_name(name) for name in visit.store.fields() if name.startswith("summary.")]
    return [name for name in names if name.endswith(".last") and not name.startswith("system/")][:4]


def _mean_and_std(values: Sequence[float]) -> tuple[float, float | None, int] | None:
    """Return mean, deviation and number of finite values; None of none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    # Sums of the largest numbers, and their squares, are larger than any.
    most = max(map(abs, finite))
    scale = most if most > _LARGE else 1.0
    scaled = [value / scale for value in finite]
    std = statistics.stdev(scaled) * scale if len(finite) > 1 else None
    return statistics.fmean(scaled) * scale, std, len(finite)


def _as_float(value: float) -> float:
    """Return a number as a float; an integer that is larger than any as an infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _fields(visit: Visit) -> Response:
    """Answer with the fields that a column can be of."""
    names = {*visit.store.fields(), *COMMON_FIELDS} - {"config", "info", "provenance", "summary", "tags"}
    shown = sorted((short_name(name) for name in names if not name.startswith("tags.")), key=str.lower)
    return json_response({"fields": ["tags", *shown][:20_000]})


# ---------------------------------------------------------------------- writing


def _chosen(visit: Visit) -> list[Run]:
    ids = visit.form.get("run", [])
    if not ids or len(ids) > _MAX_CHANGED:
        raise FilterError(f"got {len(ids)} runs, expected 1 to {_MAX_CHANGED}")
    return [visit.store.get(id) for id in ids]


def _discard(visit: Visit) -> Response:
    removed = visit.store.discard(_chosen(visit))
    return json_response({"done": f"{count_text(len(removed.runs), 'run')} moved into the trash"})


def _tag(visit: Visit) -> Response:
    """Attach the words of `add`, and take those of `remove` away."""
    chosen = _chosen(visit)
    for run in chosen:
        visit.store.tag(run, visit.given("add").split(), visit.given("remove").split())
    return json_response({"done": f"tags of {count_text(len(chosen), 'run')} changed"})


def _note(visit: Visit) -> Response:
    """Replace the note of runs, of one run only if it still is the version that whoever writes has seen."""
    text, seen = visit.given("note").replace("\r\n", "\n"), visit.given("version")
    for run in _chosen(visit):
        try:
            if seen and seen != version_of(run.note):
                raise ChangedError("the note has changed to the text below; combine both, and save")
            visit.store.write_note(run, text, was=run.note if seen else None)
        except ChangedError as error:
            now = visit.store.get(run.id).note
            return json_response({"error": str(error), "note": now, "version": version_of(now)}, 409)
    return json_response({"done": "note written", "version": version_of(text)})


ROUTES = [
    page("/runs", _runs),
    page("/list/rows", _rows),
    page("/list/fields", _fields),
    page("/list/discard", _discard, "POST"),
    page("/list/tag", _tag, "POST"),
    page("/list/note", _note, "POST"),
]
