"""A request for a page, and the function that answers it."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from runs.board.pool import StorePool
from runs.board.rendering import render
from runs.board.security import Policy, read_body
from runs.errors import FilterError, RunNotFoundError, RunsError, StoreAwayError
from runs.query.strict_json import strict
from runs.stores.store import Store
from runs.sweeps.views.reading import SweepReader

__all__ = ["Board", "Visit", "json_response", "look_again_s", "page", "version_of", "watched"]

_LOOK_S, _SHARE = 2.0, 20
# When to ask again for a store that is away.
_RETRY_S = "5"
# How long a browser waits for a page before it is told what is being read meanwhile, and when it asks again.
_PATIENCE_S, _RELOAD_S = 1.0, "1"


@dataclasses.dataclass(frozen=True)
class Board:
    """State that all requests share.

    Attributes:
        pool: The store.
        policy: Who may do what.
        where: The store's name, without credentials.
        sweeps: Reads sweeps.
    """

    pool: StorePool
    policy: Policy
    where: str
    sweeps: SweepReader = dataclasses.field(default_factory=SweepReader)


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

    def asked(self, name: str, default: str = "") -> str:
        """Return a parameter of the URL."""
        return self.request.query_params.get(name, default)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number of the URL, within bounds."""
        try:
            return min(max(int(self.asked(name)[:20]), least), most)
        except ValueError:
            return default

    def bound(self, name: str, expected: str = "a step or a time in seconds") -> float | None:
        """Return a number of the URL, by default a step or a time; None where there is none.

        Raises:
            FilterError: If it is something else.
        """
        text = self.asked(name)
        if not text:
            return None
        try:
            found = float(text[:40])
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            raise FilterError(f"{name}: got {text[:40]!r}, expected {expected}")
        return found

    def given(self, name: str) -> str:
        """Return a field of the form."""
        return self.form.get(name, [""])[0]

    def render(self, template: str, status_code: int = 200, **values: Any) -> Response:
        """Return a page."""
        return HTMLResponse(render(template, board=self.board, path=self.request.url.path, **values), status_code)


def _status_of(error: RunsError) -> int:
    """Return the status of the answer that tells an error."""
    statuses = {RunNotFoundError: 404, FilterError: 400, StoreAwayError: 503}
    return next((status for kind, status in statuses.items() if isinstance(error, kind)), 409)


def look_again_s(started: float, least_s: float = _LOOK_S) -> float:
    """Return after how many seconds a page that watches asks again.

    Args:
        started: When this look was begun, by `time.perf_counter`. All looks take a twentieth of the time at most.
        least_s: Not before so many seconds.
    """
    return max(least_s, _SHARE * (time.perf_counter() - started))


def version_of(text: str) -> str:
    """Return what is another word for another text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def watched(visit: Visit, body: str, look_again_s: float, **more: str) -> Response:
    """Return HTML to a page that watches it, or that it is as it was; see `repeat` in board.js.

    Args:
        visit: The request.
        body: The HTML as it is now.
        look_again_s: When to ask again.
        more: Further headers, with `_` for `-`.
    """
    tag = f'"{version_of(body)}"'
    headers = {"etag": tag, "x-look-again-s": f"{look_again_s:.1f}"}
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    if visit.request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(body, headers=headers)


def json_response(value: Any, status: int = 200) -> Response:
    """Return a document; numbers that JSON lacks become texts."""
    return JSONResponse(strict(value), status)


Handler = Callable[[Visit], Response]


def page(path: str, handler: Handler, method: str = "GET") -> Route:
    """Return the route of a page.

    Args:
        path: Its path, as Starlette has it.
        handler: Answers a visit; runs in the thread of a store.
        method: GET, or POST of what writes.
    """

    async def endpoint(request: Request) -> Response:
        board: Board = request.app.state.board
        try:
            form = await read_body(request) if method == "POST" else {}
            is_looked_at = request.headers.get("sec-fetch-dest") == "document"  # not fetched, saved or framed
            if is_looked_at and (progress := board.pool.progress):
                return _reading(board, progress)
            answer = asyncio.ensure_future(board.pool.ask(lambda store: handler(Visit(board, store, request, form))))
            while is_looked_at and not (await asyncio.wait({answer}, timeout=_PATIENCE_S))[0]:
                if progress := board.pool.progress:
                    answer.add_done_callback(_forget)
                    return _reading(board, progress)
            return await answer
        except RunsError as error:
            return _problem(board, request, error)

    named: Callable[[Request], Awaitable[Response]] = endpoint
    return Route(path, named, methods=[method])


def _forget(answer: asyncio.Future[Response]) -> None:
    """Take note of the outcome of a visit that is not waited for; whoever asks again sees it."""
    if not answer.cancelled():
        answer.exception()


def _reading(board: Board, progress: tuple[str, int, int]) -> Response:
    """Return the page that somebody sees while a store is read that was never read before, or changed much."""
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
