"""The board as an ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from runs.board import (
    artifacts_page,
    changes,
    compare_page,
    content_page,
    media_page,
    panels_page,
    points_page,
    run_page,
    runs_page,
    saved_views,
    selection,
    sweep_page,
)
from runs.board.assets import asset
from runs.board.pool import StorePool
from runs.board.rendering import render
from runs.board.security import Guard, Policy
from runs.board.visits import Board
from runs.stores.store import Store

__all__ = ["create_app"]

_PAGES = (
    runs_page,
    saved_views,
    selection,
    changes,
    panels_page,
    run_page,
    compare_page,
    sweep_page,
    artifacts_page,
    points_page,
    media_page,
    content_page,
)


def create_app(open_store: Callable[[], Store], policy: Policy | None = None) -> Starlette:
    """Return the board over a store.

    Args:
        open_store: Opens the store; each thread opens its own.
        policy: Who may do what.
    """
    policy = policy or Policy()
    pool = StorePool(open_store)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.board = Board(pool, policy, await pool.ask(lambda store: store.where))
        yield
        app.state.board.sweeps.close()
        pool.close()

    routes = [
        Route("/static/{name}", _static_file),
        *(route for module in _PAGES for route in module.ROUTES),
    ]
    middleware = [Middleware(Guard, policy=policy), Middleware(GZipMiddleware, minimum_size=2048, compresslevel=4)]
    app = Starlette(routes=routes, middleware=middleware, lifespan=lifespan, exception_handlers={404: _not_found})
    app.state.board = Board(pool, policy, "")
    return app


async def _static_file(request: Request) -> Response:
    return await asset(request) or await _not_found(request, Exception())


async def _not_found(request: Request, error: Exception) -> Response:
    board: Board = request.app.state.board
    return HTMLResponse(
        render("problem.html", board=board, path="", problem=f"there is no page {request.url.path}"), 404
    )
