"""The board as an ASGI application."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from sacristan.runs.board import all_stores
from sacristan.runs.board.assets import asset, static_url
from sacristan.runs.board.policy import Policy
from sacristan.runs.board.rendering import render
from sacristan.runs.board.roots import root
from sacristan.runs.board.routes import ROUTES
from sacristan.runs.board.security import Guard
from sacristan.runs.board.visits import Board, board_of
from sacristan.runs.stores.pool import StorePool
from sacristan.runs.stores.store import Store

__all__ = ["create_app"]

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
        pages = [Mount("/s/{store}", routes=ROUTES), Route("/", _first_store), *all_stores.ROUTES]
    static = [Route(path, _static_file) for path in ("/static/{name}", "/static/{version}/{name}")]
    routes = [*static, Route("/favicon.ico", _icon), *pages]
    middleware = [Middleware(Guard, policy=policy), Middleware(GZipMiddleware, minimum_size=2048, compresslevel=4)]
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
        render("problem.html", board=board, path="", problem=f"there is no page {request.url.path}"), 404
    )
