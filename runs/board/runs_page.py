"""The page of all runs, which the store finds, sorts and counts."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from runs.board.answers import json_response, look_again_s, version_of, watched
from runs.board.rendering import render
from runs.board.views import RunsView
from runs.board.visits import Visit, page
from runs.comparison.grouping import group_runs
from runs.errors import ChangedError, FilterError, StoreError
from runs.query.names import COMMON_FIELDS, short_name
from runs.query.texts import count_text, is_number
from runs.stores.run import Run
from runs.stores.settings import telling_settings

__all__ = ["ROUTES"]

_COLUMNS = ("name", "status", "start", "duration")
_NEEDED = ("status", "tags")
# Greatest age of the runs on a page when it opens; it then looks for changes at once.
_SHOWN_FOR_S = 10.0
# Greatest age of the list of damaged runs.
_BROKEN_FOR_S = 60.0
# Larger numbers are scaled before they are squared.
_LARGE = 1e150
_MAX_GROUPED = 20_000
# A page counts this many runs beyond those that it shows before it is sent, and all when it looks for changes.
_COUNTED = 1_000
_MAX_CHANGED = 1_000


@dataclasses.dataclass(frozen=True)
class _Shown:
    """Values of the template of a view.

    Attributes:
        columns: Names of the columns.
        rows: The runs, each with its values by column.
        groups: The groups that are shown instead; None for single runs.
        total: Number of runs.
        is_more: Whether there may be more than `total`.
        numeric: Columns of numbers.
        broken: Damaged runs, with the reasons.
    """

    columns: Sequence[str]
    rows: Sequence[tuple[Run, list[Any]]] = ()
    groups: Sequence[Mapping[str, Any]] | None = None
    total: int = 0
    is_more: bool = False
    numeric: Collection[str] = ()
    broken: Sequence[tuple[str, str]] = ()


# ---------------------------------------------------------------------- looking


def _runs(visit: Visit) -> Response:
    """Answer with the page of a view."""
    view = RunsView.of(visit.request.query_params)
    if "add" in visit.request.query_params:
        view = view.adding(visit.asked("add"))  # the page then puts the view's own address into the address bar
    problem = ""
    try:
        if view.group:
            shown = _grouped(visit, view)
        else:
            visit.store.max_age_s = _SHOWN_FOR_S
            # Counting all runs reads none; counting those of a filter does.
            limit = _COUNTED * (1 + view.page * view.SIZE // _COUNTED) if view.is_filtered else None
            shown = _listed(visit, view, limit)
    except FilterError as error:
        problem, shown = str(error), _Shown(view.column)
    finally:
        visit.store.max_age_s = 0.0
    return visit.render("runs.html", 400 if problem else 200, view=view, problem=problem, **vars(shown))


def _rows(visit: Visit) -> Response:
    """Answer with the rows of a view, or that they have not changed, to a page that watches them."""
    started = time.perf_counter()
    view = RunsView.of(visit.request.query_params)
    shown = _listed(visit, view)
    body = render("rows.html", board=visit.board, view=view, **vars(shown))
    return watched(visit.request, body, look_again_s(started), x_total=str(shown.total))


def _listed(visit: Visit, view: RunsView, limit: int | None = None) -> _Shown:
    """Return the rows of a view, and the number of all of its runs, counted up to a limit."""
    fetched = [*(view.column or (*_COLUMNS, "result", "tags")), *_NEEDED]
    runs = [run.listed() for run in visit.store.find(view.tree, view.sort, view.SIZE, fetched, view.offset)]
    columns = view.column or _usual_columns(runs, view)
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
    )


def _usual_columns(runs: Sequence[Run], view: RunsView) -> tuple[str, ...]:
    """Return the usual columns, the field of the order, and the settings that differ."""
    more = [name for name in (view.sort_name, "result") if any(_value(run, name) is not None for run in runs)]
    return tuple(dict.fromkeys([*_COLUMNS, *(name for name in more if name != "id"), *telling_settings(runs), "tags"]))


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
    runs = [run.listed() for run in visit.store.find(view.tree, None, _MAX_GROUPED, [view.group, *names])]
    if runs:
        visit.store.check_field(view.group)
    groups = group_runs(runs, [view.group])[0] if runs else []
    numbers: dict[str, list[list[float]]] = {}
    for name in names:
        values = [[_as_float(value) for run in group.runs if is_number(value := _value(run, name))] for group in groups]
        if any(values):
            numbers[name] = values
    rows = [
        {
            "label": group.name,
            "url": view.of_group(group.label, group.values[view.group]),
            "count": len(group.runs),
            "cells": [_mean_and_std(values[place]) for values in numbers.values()],
        }
        for place, group in enumerate(groups)
    ]
    broken = visit.store.unreadable(_BROKEN_FOR_S)
    return _Shown(tuple(numbers), groups=rows, total=len(runs), numeric=numbers.keys(), broken=broken)


def _some_metrics(visit: Visit) -> list[str]:
    names = [short_name(name) for name in visit.store.fields() if name.startswith("summary.")]
    return [name for name in names if name.endswith(".last") and not name.startswith("system/")][:4]


def _mean_and_std(values: Sequence[float]) -> tuple[float, float | None, int] | None:
    """Return mean, deviation and number of finite values; None of none."""
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
    """Return a number as a float; too large integers become infinities."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _fields(visit: Visit) -> Response:
    """Answer with the fields that columns can show."""
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
    """Add the tags of `add`, and remove those of `remove`."""
    chosen = _chosen(visit)
    for run in chosen:
        visit.store.tag(run, visit.given("add").split(), visit.given("remove").split())
    return json_response({"done": f"tags of {count_text(len(chosen), 'run')} changed"})


def _note(visit: Visit) -> Response:
    """Replace the notes of runs, each only if it still is the version that the writer has seen."""
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
