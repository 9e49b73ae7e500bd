"""The page that lists the runs of all stores together."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from sacristan.runs.board.rendering import render, run_url
from sacristan.runs.board.roots import root
from sacristan.runs.board.views import RunsView
from sacristan.runs.board.visits import Board
from sacristan.runs.errors import FilterError, RunsError, StoreError
from sacristan.runs.query.filters import in_order
from sacristan.runs.query.names import full_name, short_name, split_names
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.store import Store

__all__ = ["ROUTES"]

_COLUMNS = ("name", "status", "start", "duration", "result", "tags")
_NEEDED = ("status", "tags")
# Seconds that the page waits for each store, all at the same time.
_PATIENCE_S = 4.0
# Runs of each store that are read to show a page, and where counting ends.
_MAX_READ, _COUNTED = 1_000, 1_000


@dataclasses.dataclass(frozen=True)
class _AllView(RunsView):
    """State of the page; the column form joins their names with commas."""

    PATH: ClassVar[str] = "/all"
    LAST_PAGE: ClassVar[int] = _MAX_READ // RunsView.SIZE


@dataclasses.dataclass(frozen=True)
class _Row:
    store: str
    id: str
    url: str
    cells: Sequence[Any]
    key: Any


@dataclasses.dataclass(frozen=True)
class _Found:
    """The first runs of one or all stores, the number of matching runs, and why stores do not answer."""

    rows: Sequence[_Row] = ()
    total: int = 0
    is_more: bool = False
    problems: Mapping[str, RunsError] = dataclasses.field(default_factory=dict)


async def _all(request: Request) -> Response:
    """Answer with a page of the runs of all stores; name each store that does not answer, with the reason."""
    boards: Mapping[str, Board] = request.app.state.boards
    root.set("")
    view = _view_of(request)
    columns = view.column or _COLUMNS
    try:
        view.tree  # noqa: B018  # a malformed condition is no fault of a store
        found = _together(await asyncio.gather(*(_ask(board, view, columns) for board in boards.values())), view)
    except FilterError as error:
        found = _Found(problems={"": error})
    wrong = [problem for problem in found.problems.values() if isinstance(problem, FilterError)]
    page = render(
        "all_stores.html",
        board=dataclasses.replace(next(iter(boards.values())), name="", visitor=request.scope["visitor"]),
        path=view.PATH,
        view=view,
        columns=columns,
        rows=found.rows[view.offset : view.offset + view.SIZE],
        total=found.total,
        has_more=found.total > view.offset + view.SIZE and view.page < view.LAST_PAGE,
        is_more=found.is_more,
        problems={name: str(problem) for name, problem in found.problems.items()},
    )
    return HTMLResponse(page, 400 if wrong and not found.rows else 200)


def _together(answers: Sequence[_Found], view: _AllView) -> _Found:
    """Merge the answers of all stores, in the order of the view."""
    rows = [row for one in answers for row in one.rows]
    return _Found(
        in_order(rows, lambda row: row.key, descending=view.sort.startswith("-")),
        sum(one.total for one in answers),
        any(one.is_more for one in answers),
        {name: problem for one in answers for name, problem in one.problems.items()},
    )


def _view_of(request: Request) -> _AllView:
    query = request.query_params
    names = split_names(",".join(query.getlist("column")))
    columns = tuple(dict.fromkeys(short_name(full_name(name)) for name in names))
    view = dataclasses.replace(_AllView.of(query), column=columns)
    return dataclasses.replace(view.adding(query.get("add", "")), page=min(view.page, view.LAST_PAGE))


async def _ask(board: Board, view: _AllView, columns: Sequence[str]) -> _Found:
    """Return the runs of one store that may be on the page, or why it returns none."""
    try:
        return await board.pool.ask_within(lambda store: _found_in(store, board, view, columns), _PATIENCE_S)
    except RunsError as error:
        return _Found(problems={board.name: error})


def _found_in(store: Store, board: Board, view: _AllView, columns: Sequence[str]) -> _Found:
    most = view.offset + view.SIZE
    runs = [run.listed() for run in store.find(view.tree, view.sort, most, [*columns, *_NEEDED])]
    by = full_name(view.sort_name)
    rows = [
        _Row(board.name, run.id, board.root + run_url(run.id), [_value(run, name) for name in columns], _key(run, by))
        for run in runs
    ]
    if len(runs) < most:
        return _Found(rows, len(runs))
    limit = max(_COUNTED, most + 1)
    total = store.count(view.tree, limit)
    return _Found(rows, total, total >= limit)


def _value(run: Run, name: str) -> Any:
    try:
        return run.tags if name == "tags" else run.get(name)
    except StoreError:  # damaged since it was found
        return None


def _key(run: Run, by: str) -> Any:
    """Return the value that sorts a run among those of other stores; numeric ids sort as numbers."""
    if by == "_id":
        return int(run.id) if run.id.isdecimal() else run.id
    return _value(run, by)


ROUTES = [Route("/all", _all)]
