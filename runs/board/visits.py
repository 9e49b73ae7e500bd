"""Requests for pages, each answered by a function in the thread of a store."""

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

from runs.board.answers import json_response
from runs.board.labels import RunLabels
from runs.board.logins import read_body
from runs.board.rendering import render
from runs.board.roots import root
from runs.board.visitors import Role, Visitor
from runs.comparison.kept_curves import KeptCurves
from runs.errors import FilterError, RunNotFoundError, RunsError, StoreAwayError
from runs.stores.pool import StorePool
from runs.stores.store import Store
from runs.sweeps.views.reading import SweepReader

__all__ = ["Board", "Visit", "board_of", "page"]

# Seconds until a client should ask again for a store that is away.
_RETRY_S = "5"
# How long a browser waits for a page before it shows the progress of reading instead, and until it asks again.
_PATIENCE_S, _RELOAD_S = 1.0, "1"


@dataclasses.dataclass(frozen=True)
class Board:
    """A store on the board, as a visitor sees it.

    Attributes:
        pool: The threads of the store.
        name: The store's name; empty on a board of one unnamed store.
        siblings: Names of all stores of the board; empty on a board of one unnamed store.
        visitor: Who sends the request.
        sweeps: Reads sweeps.
        labels: Labels of runs.
        curves: Curves of runs.
    """

    pool: StorePool
    name: str = ""
    siblings: tuple[str, ...] = ()
    visitor: Visitor = dataclasses.field(default_factory=Visitor)
    sweeps: SweepReader = dataclasses.field(default_factory=SweepReader)
    labels: RunLabels = dataclasses.field(default_factory=RunLabels)
    curves: KeptCurves = dataclasses.field(default_factory=KeptCurves)

    @property
    def where(self) -> str:
        """The folder or the URL of the store, without credentials; empty until it was opened."""
        return self.pool.where

    @property
    def root(self) -> str:
        """The beginning of the paths of its pages."""
        return f"/s/{self.name}" if self.name else ""


def board_of(request: Request) -> Board:
    """Return the store that a request asks for, and make addresses lead to its pages.

    Args:
        request: The request.

    Raises:
        HTTPException: If the board has no store of this name.
    """
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
        board: What all requests share.
        store: The store.
        request: The request; its body is in `form`.
        form: Fields of the form that was sent.
    """

    board: Board
    store: Store
    request: Request
    form: Mapping[str, list[str]]

    def asked(self, name: str) -> str:
        """Return a parameter of the URL; an empty text if the URL lacks it."""
        return self.request.query_params.get(name, "")

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Return a parameter of the URL that is a whole number.

        Args:
            name: The parameter.
            default: The number if the URL has none.
            least, most: Bounds, which the number is moved into.
        """
        try:
            return min(max(int(self.asked(name)[:20]), least), most)
        except ValueError:
            return default

    def bound(self, name: str, expected: str = "a step or a time in seconds") -> float | None:
        """Return a parameter of the URL that is a finite number; None without it.

        Args:
            name: The parameter.
            expected: The valid numbers in words, for the error.

        Raises:
            FilterError: If it is something else.
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
        """Return a field of the form; an empty text without it.

        Args:
            name: The field.
        """
        return self.form.get(name, [""])[0]

    def render(self, template: str, status_code: int = 200, **values: Any) -> Response:
        """Return a page.

        Args:
            template: Name of the template.
            status_code: The status of the answer.
            values: Values of the template.
        """
        return HTMLResponse(render(template, board=self.board, path=self.request.url.path, **values), status_code)


def _status_of(error: RunsError) -> int:
    """Return the status of an answer with an error."""
    statuses = {RunNotFoundError: 404, FilterError: 400, StoreAwayError: 503}
    return next((status for kind, status in statuses.items() if isinstance(error, kind)), 409)


Handler = Callable[[Visit], Response]


def page(path: str, handler: Handler, method: str = "GET", role: Role | None = None) -> Route:
    """Return the route of a page.

    Args:
        path: Its path, as Starlette writes it.
        handler: Answers a visit; it runs in the thread of a store.
        method: GET, or POST for a handler that writes.
        role: The role that it needs; by default `READ` for GET, and `WRITE` for POST.
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
    """Retrieve the error of a visit that nobody waits for; the next request reports it."""
    if not answer.cancelled():
        answer.exception()


def _reading(board: Board, progress: tuple[str, int, int]) -> Response:
    """Return the page that shows the progress while a new or much changed store is read."""
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
