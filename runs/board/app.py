"""The board as an ASGI application, and its page that lists the runs of all stores together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from sacristan.runs.board import (
    artifacts_page,
    compare_page,
    contents,
    curves_page,
    media_page,
    reports_page,
    run_page,
    runs_page,
    selected_runs,
    sweep_page,
)
from sacristan.runs.board.access import Policy
from sacristan.runs.board.rendering import asset, render, run_url, static_url
from sacristan.runs.board.security import AccessControl
from sacristan.runs.board.views import RunsView, root
from sacristan.runs.board.visits import Board, board_of, field_of, look_again_s, watched
from sacristan.runs.errors import FilterError, RunsError
from sacristan.runs.query.filters import in_order
from sacristan.runs.query.names import full_name, short_name, split_names
from sacristan.runs.stores.pool import StorePool
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.store import Store

__all__ = ["ROUTES", "create_app"]

_COLUMNS = ("name", "status", "start", "duration", "result", "tags")
_NEEDED = ("status", "tags")
# Seconds that the page waits for each store, all at the same time.
_PATIENCE_S = 4.0
# A page looks again after so long at most, even if a store that was away made it wait.
_LOOK_S = 10.0
# Runs of each store that are read to show a page, and where counting ends.
_MAX_READ, _COUNTED = 1_000, 1_000
_PAGES = (
    runs_page,
    selected_runs,
    curves_page,
    run_page,
    compare_page,
    sweep_page,
    artifacts_page,
    media_page,
    contents,
    reports_page,
)
ROUTES = [route for module in _PAGES for route in module.ROUTES]
Opener = Callable[[], Store]


def create_app(stores: Opener | Mapping[str, Opener], policy: Policy | None = None) -> Starlette:
    """Create the ASGI application of the board, over one store or several.

    Each thread calls the opener of a store for itself. A mapping gives the openers by the stores' names.
    """
    policy = policy or Policy()
    named: Mapping[str, Opener] = stores if isinstance(stores, Mapping) else {"": stores}
    names = tuple(filter(None, named))
    boards = {name: Board(StorePool(opener), name, names) for name, opener in named.items()}

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for board in boards.values():
            board.sweeps.close()
            board.pool.close()

    pages: list[BaseRoute] = list(ROUTES)
    if names:
        pages = [Mount("/s/{store}", routes=ROUTES), Route("/", _first_store), Route("/all", _all)]
    static = [Route(path, _static_file) for path in ("/static/{name}", "/static/{version}/{name}")]
    routes = [*static, Route("/favicon.ico", _icon), *pages]
    middleware = [
        Middleware(AccessControl, policy=policy),
        Middleware(GZipMiddleware, minimum_size=2048, compresslevel=4),
    ]
    app = Starlette(routes=routes, middleware=middleware, lifespan=lifespan, exception_handlers={404: _not_found})
    app.state.boards = boards
    return app


async def _first_store(request: Request) -> Response:
    return RedirectResponse(f"{next(iter(request.app.state.boards.values())).root}/")


async def _static_file(request: Request) -> Response:
    # Without a page around it, which names the stores: strangers may ask, too.
    return await asset(request) or PlainTextResponse("there is no such file\n", 404)


async def _icon(request: Request) -> Response:
    # Browsers ask for it beside what names no icon: the login, files, refusals.
    return RedirectResponse(static_url("icon.svg"))


async def _not_found(request: Request, error: Exception) -> Response:
    try:
        board = board_of(request)
    except HTTPException:
        board = next(iter(request.app.state.boards.values()))
        root.set(board.root)
        board = dataclasses.replace(board, visitor=request.scope["visitor"])
    return HTMLResponse(
        render("problem.html", board=board, path="", problem=f"there is no page {request.url.path}", discarded=""), 404
    )


# ---------------------------------------------------------------------- the runs of all stores


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
class _Matches:
    """The first runs of one or all stores, the number of matching runs, and why stores do not answer."""

    rows: Sequence[_Row] = ()
    total: int = 0
    is_more: bool = False
    problems: Mapping[str, RunsError] = dataclasses.field(default_factory=dict)


async def _all(request: Request) -> Response:
    """Answer with a page of the runs of all stores; name each store that does not answer, with the reason."""
    started = time.perf_counter()
    boards: Mapping[str, Board] = request.app.state.boards
    root.set("")
    view = _view_of(request)
    columns = view.column or _COLUMNS
    try:
        view.tree  # noqa: B018  # a malformed condition is no fault of a store
        matches = _together(await asyncio.gather(*(_ask(board, view, columns) for board in boards.values())), view)
    except FilterError as error:
        matches = _Matches(problems={"": error})
    wrong = [problem for problem in matches.problems.values() if isinstance(problem, FilterError)]
    page = render(
        "all_stores.html",
        board=dataclasses.replace(next(iter(boards.values())), name="", visitor=request.scope["visitor"]),
        path=view.PATH,
        view=view,
        columns=columns,
        rows=matches.rows[view.offset : view.offset + view.SIZE],
        total=matches.total,
        has_more=matches.total > view.offset + view.SIZE and view.page < view.LAST_PAGE,
        is_more=matches.is_more,
        problems={name: str(problem) for name, problem in matches.problems.items()},
        is_followed=not wrong,
    )
    if wrong and not matches.rows:
        return HTMLResponse(page, 400)
    return watched(request, page, min(look_again_s(started), _LOOK_S))


def _together(answers: Sequence[_Matches], view: _AllView) -> _Matches:
    rows = [row for one in answers for row in one.rows]
    return _Matches(
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


async def _ask(board: Board, view: _AllView, columns: Sequence[str]) -> _Matches:
    """Return the runs of one store that may be on the page, or why it returns none."""
    try:
        return await board.pool.ask_within(lambda store: _found_in(store, board, view, columns), _PATIENCE_S)
    except RunsError as error:
        return _Matches(problems={board.name: error})


def _found_in(store: Store, board: Board, view: _AllView, columns: Sequence[str]) -> _Matches:
    most = view.offset + view.SIZE
    runs = [run.listed() for run in store.find(view.tree, view.sort, most, [*columns, *_NEEDED])]
    by = full_name(view.sort_name)
    rows = [
        _Row(board.name, run.id, board.root + run_url(run.id), [field_of(run, name) for name in columns], _key(run, by))
        for run in runs
    ]
    if len(runs) < most:
        return _Matches(rows, len(runs))
    limit = max(_COUNTED, most + 1)
    total = store.count(view.tree, limit)
    return _Matches(rows, total, total >= limit)


def _key(run: Run, by: str) -> Any:
    """Return the value that sorts a run among those of other stores; numeric ids sort as numbers."""
    if by == "_id":
        return int(run.id) if run.id.isdecimal() else run.id
    return field_of(run, by)
