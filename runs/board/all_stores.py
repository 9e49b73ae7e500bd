"""The page that lists the runs of all stores together."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from runs.board.rendering import render, run_url
from runs.board.roots import root
from runs.board.views import RunsView
from runs.board.visits import Board
from runs.errors import FilterError, RunsError, StoreError
from runs.query.filters import in_order
from runs.query.names import full_name
from runs.stores.run import Run
from runs.stores.store import Store

__all__ = ["ROUTES"]

_COLUMNS = ("name", "status", "start", "duration", "result", "tags")
_NEEDED = ("status", "tags")
# Seconds that the page waits for each store, all at the same time.
_PATIENCE_S = 4.0
# Runs of each store that are read to show a page, and where counting ends.
_MAX_READ, _COUNTED = 1_000, 1_000


@dataclasses.dataclass(frozen=True)
class _AllView(RunsView):
    """State of the page; the form of the columns joins their names by commas."""

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
    """Answer of a store: its first runs, and the number of all that match."""

    rows: Sequence[_Row] = ()
    total: int = 0


async def _all(request: Request) -> Response:
    """Answer with a page of the runs of all stores; a store that does not answer is named with the reason."""
    boards: Mapping[str, Board] = request.app.state.boards
    root.set("")
    view = _view_of(request)
    columns = view.column or _COLUMNS
    found: list[_Found] = []
    problems: dict[str, RunsError] = {}
    try:
        view.tree  # noqa: B018  # a malformed condition is no fault of a store
        answers = await asyncio.gather(*(_ask(board, view, columns) for board in boards.values()))
        found = [answer for answer in answers if isinstance(answer, _Found)]
        problems = {name: answer for name, answer in zip(boards, answers, strict=True) if isinstance(answer, RunsError)}
    except FilterError as error:
        problems = {"": error}
    rows = in_order(
        [row for one in found for row in one.rows], lambda row: row.key, descending=view.sort.startswith("-")
    )
    total = sum(one.total for one in found)
    board = dataclasses.replace(next(iter(boards.values())), name="", visitor=request.scope["visitor"])
    is_wrong = bool(problems) and not found and all(isinstance(one, FilterError) for one in problems.values())
    page = render(
        "all_stores.html",
        board=board,
        path="/all",
        view=view,
        columns=columns,
        rows=rows[view.offset : view.offset + view.SIZE],
        total=total,
        has_more=total > view.offset + view.SIZE and view.page < view.LAST_PAGE,
        is_more=any(one.total >= _COUNTED for one in found),
        problems={name: str(problem) for name, problem in problems.items()},
    )
    return HTMLResponse(page, 400 if is_wrong else 200)


def _view_of(request: Request) -> _AllView:
    query = request.query_params
    view = _AllView.of(query)
    names = ",".join(view.column).split(",")
    view = dataclasses.replace(view, column=tuple(dict.fromkeys(name.strip() for name in names if name.strip())))
    return dataclasses.replace(view.adding(query.get("add", "")), page=min(view.page, view.LAST_PAGE))


async def _ask(board: Board, view: _AllView, columns: Sequence[str]) -> _Found | RunsError:
    """Return the runs of one store that may be on the page, or why it has none."""
    try:
        return await board.pool.ask_within(lambda store: _found_in(store, board, view, columns), _PATIENCE_S)
    except RunsError as error:
        return error


def _found_in(store: Store, board: Board, view: _AllView, columns: Sequence[str]) -> _Found:
    most = view.offset + view.SIZE
    runs = [run.listed() for run in store.find(view.tree, view.sort, most, [*columns, *_NEEDED])]
    by = full_name(view.sort_name)
    rows = [
        _Row(board.name, run.id, board.root + run_url(run.id), [_value(run, name) for name in columns], _key(run, by))
        for run in runs
    ]
    return _Found(rows, len(runs) if len(runs) < most else store.count(view.tree, max(_COUNTED, most + 1)))


def _value(run: Run, name: str) -> Any:
    try:
        return run.tags if name == "tags" else run.get(name)
    except StoreError:  # damaged since it was found
        return None


def _key(run: Run, by: str) -> Any:
    """Return the value that sorts a run among those of other stores; ids are numbers, where they are."""
    if by == "_id":
        return int(run.id) if run.id.isdecimal() else run.id
    return _value(run, by)


ROUTES = [Route("/all", _all)]
