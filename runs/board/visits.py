"""Requests for pages; each is answered by a function in a store's thread."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from sacristan.runs.board.answers import json_response
from sacristan.runs.board.labels import RunLabels
from sacristan.runs.board.logins import read_body
from sacristan.runs.board.rendering import render
from sacristan.runs.board.roots import root
from sacristan.runs.board.visitors import Role, Visitor
from sacristan.runs.comparison.panels import CurveCache
from sacristan.runs.errors import FilterError, RunNotFoundError, RunsError, StoreAwayError
from sacristan.runs.stores.pool import StorePool
from sacristan.runs.stores.store import Store
from sacristan.runs.sweeps.views.sweep_reader import SweepReader

__all__ = ["Board", "Visit", "board_of", "page"]

# Seconds until a client should ask again for a store that is away.
_RETRY_S = "5"
# How long a browser waits for a page before it shows the progress of reading instead, and until it asks again.
_PATIENCE_S, _RELOAD_S = 1.0, "1"


@dataclasses.dataclass(frozen=True)
class Board:
    """A store on the board, as a visitor sees it.

    Attributes:
        pool: The threads of the store, each with the store open.
        name: The store's name; empty on a board of one unnamed store.
        siblings: Names of all stores of the board; empty on a board of one unnamed store.
    """

    pool: StorePool
    name: str = ""
    siblings: tuple[str, ...] = ()
    visitor: Visitor = dataclasses.field(default_factory=Visitor)
    sweeps: SweepReader = dataclasses.field(default_factory=SweepReader)
    labels: RunLabels = dataclasses.field(default_factory=RunLabels)
    curves: CurveCache = dataclasses.field(default_factory=CurveCache)

    @property
    def where(self) -> str:
        """The folder or the URL of the store, without credentials; empty until it has been opened."""
        return self.pool.where

    @property
    def root(self) -> str:
        """The prefix of its pages' paths."""
        return f"/s/{self.name}" if self.name else ""


def board_of(request: Request) -> Board:
    """Return the store of a request, and set the root of its pages' URLs; HTTPException if there is no such store."""
    boards: Mapping[str, Board] = request.app.state.boards
    board = boards.get(request.path_params.get("store", ""))
    if board is None:
        raise HTTPException(404)
    root.set(board.root)
    return dataclasses.replace(board, visitor=request.scope["visitor"])


@dataclasses.dataclass(frozen=True)
class Visit:
    """A request, in the thread of a store.

    Attributes:
        board: The store's board, shared by all requests.
        request: The request; its body is in `form`.
        form: Fields of the submitted form.
    """

    board: Board
    store: Store
    request: Request
    form: Mapping[str, list[str]]

    def asked(self, name: str) -> str:
        """Return a parameter of the URL; empty if it is missing."""
        return self.request.query_params.get(name, "")

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Return an integer parameter of the URL, clipped to the bounds; the default if it is missing or invalid."""
        try:
            return min(max(int(self.asked(name)[:20]), least), most)
        except ValueError:
            return default

    def bound(self, name: str, expected: str = "a step or a time in seconds") -> float | None:
        """Return a parameter of the URL that must be a finite number; None if it is missing.

        FilterError names the `expected` numbers.
        """
        text = self.asked(name)
        if not text:
            return None
        try:
            value = float(text[:40])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise FilterError(f"{name}: got {text[:40]!r}, expected {expected}")
        return value

    def given(self, name: str) -> str:
        """Return a field of the form; empty if it is missing."""
        return self.form.get(name, [""])[0]

    def render(self, template: str, status_code: int = 200, **values: Any) -> Response:
        """Return a page."""
        return HTMLResponse(render(template, board=self.board, path=self.request.url.path, **values), status_code)


def _status_of(error: RunsError) -> int:
    """Return the status of an answer with an error."""
    statuses = {RunNotFoundError: 404, FilterError: 400, StoreAwayError: 503}
    return next((status for kind, status in statuses.items() if isinstance(error, kind)), 409)


Handler = Callable[[Visit], Response]


def page(path: str, handler: Handler, method: str = "GET", role: Role | None = None) -> Route:
    """Create the route of a page; the handler runs in a store's thread. Use POST for handlers that write.

    By default, GET needs the role `READ`, and POST needs `WRITE`.
    """
    needed = role if role is not None else Role.READ if method == "GET" else Role.WRITE

    async def endpoint(request: Request) -> Response:
        board = board_of(request)
        if board.visitor.role < needed:
            why = f"{board.visitor.name} has the role {board.visitor.role.word}; this needs the role {needed.word}"
            return json_response({"error": why}, 403)
        try:
            form = await read_body(request) if method == "POST" else {}
            is_navigation = request.headers.get("sec-fetch-dest") == "document"  # not fetched, saved or framed
            if is_navigation and (progress := board.pool.progress):
                return _reading(board, progress)
            answer = asyncio.ensure_future(
                board.pool.ask(lambda store: _answer(handler, Visit(board, store, request, form)))
            )
            while is_navigation and not (await asyncio.wait({answer}, timeout=_PATIENCE_S))[0]:
                if progress := board.pool.progress:
                    answer.add_done_callback(_forget)
                    return _reading(board, progress)
            return await answer
        except RunsError as error:
            return _problem(board, request, error)

    named: Callable[[Request], Awaitable[Response]] = endpoint
    return Route(path, named, methods=[method])


def _answer(handler: Handler, visit: Visit) -> Response:
    visit.store.author = visit.board.visitor.author
    return handler(visit)


def _forget(answer: asyncio.Future[Response]) -> None:
    """Retrieve the error of an abandoned visit; the next request reports it."""
    if not answer.cancelled():
        answer.exception()


def _reading(board: Board, progress: tuple[str, int, int]) -> Response:
    """Return the page that shows the progress while a new or much changed store is being read."""
    page = render("reading.html", board=board, path="", progress=progress)
    return HTMLResponse(page, 202, {"refresh": _RELOAD_S, "cache-control": "no-store"})


def _problem(board: Board, request: Request, error: RunsError) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        page = render("problem.html", board=board, path="", problem=str(error))
        answer: Response = HTMLResponse(page, _status_of(error))
    else:
        answer = json_response({"error": str(error)}, _status_of(error))
    if isinstance(error, StoreAwayError):
        answer.headers["retry-after"] = _RETRY_S
    return answer
