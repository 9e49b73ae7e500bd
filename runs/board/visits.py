"""Requests for pages; each is answered by a function in a store's thread."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from sacristan.runs.board.access import Role, Visitor
from sacristan.runs.board.rendering import render
from sacristan.runs.board.security import read_body
from sacristan.runs.board.views import root
from sacristan.runs.comparison.panels import CurveCache
from sacristan.runs.errors import (
    DiscardedError,
    FilterError,
    RemovedError,
    RunNotFoundError,
    RunsError,
    StoreAwayError,
    StoreError,
)
from sacristan.runs.query.texts import strict
from sacristan.runs.stores import Run, Store, prefetch
from sacristan.runs.stores.pool import StorePool
from sacristan.runs.stores.settings import run_labels, telling_settings
from sacristan.runs.sweeps.views import SweepReader

_LOOK_S, _SHARE = 2.0, 20
_MAX_LABELLED = 32
# Seconds until a client should ask again for a store that is away.
_RETRY_S = "5"
# How often a question is repeated because runs that it found were removed.
_MOST_REMOVALS = 20
# How long a browser waits for a page before it shows the progress of reading instead, and until it asks again.
_PATIENCE_S, _RELOAD_S = 1.0, "1"


def json_response(value: Any, status: int = 200) -> Response:
    """Return a document as JSON. Numbers that JSON lacks become strings."""
    return JSONResponse(strict(value), status)


def numbers_response(value: Mapping[str, Any]) -> Response:
    """Return a document with numpy arrays anywhere in it, 20 times as fast as JSON on either side.

    The body has the length of the JSON (4 bytes), the JSON, and from the next multiple of 8 on numbers of 64 bits. In
    the JSON, `{"numbers": [first, count]}` stands for an array, whose NaN are gaps; see `fetchNumbers` in plots.js.
    """
    arrays: list[bytes] = []
    places: dict[bytes, list[int]] = {}
    end = 0

    def placed(item: Any) -> Any:
        nonlocal end
        if isinstance(item, Mapping):
            return {str(key): placed(one) for key, one in item.items()}
        if isinstance(item, list | tuple):
            return [placed(one) for one in item]
        if not isinstance(item, np.ndarray):
            return strict(item)
        numbers = np.where(np.isfinite(item), item, np.nan).astype("<f8").tobytes()
        digest = hashlib.blake2b(numbers, digest_size=16).digest()
        if digest not in places:  # many runs have the same steps
            places[digest] = [end, len(item)]
            arrays.append(numbers)
            end += len(item)
        return {"numbers": places[digest]}

    head = json.dumps(placed(value), separators=(",", ":")).encode()
    head += b" " * (-(4 + len(head)) % 8)
    body = b"".join([len(head).to_bytes(4, "little"), head, *arrays])
    # Compression does not shorten numbers.
    return Response(body, media_type="application/octet-stream", headers={"content-encoding": "identity"})


def watched(request: Request, body: str, again_s: float, **more: str) -> Response:
    """Return HTML to a page that watches it, without a body if it has not changed; see `watch` in board.js."""
    tag = f'"{version_of(body)}"'
    headers = {"etag": tag, "x-look-again-s": f"{again_s:.1f}"}
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(body, headers=headers)


def look_again_s(started: float, least_s: float = _LOOK_S) -> float:
    """Return the seconds until a page asks again, so that its requests take at most a twentieth of the time."""
    return max(least_s, _SHARE * (time.perf_counter() - started))


def version_of(text: str) -> str:
    """Return a short digest that identifies the version of a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


class RunLabels:
    """Caches the settings that distinguish the sets of runs that pages requested last.

    Reading and comparing the configs of all runs takes half of the time of a page or panel. A recorded config never
    changes, so runs of the same names keep their labels.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], list[str]] = {}
        self._lock = threading.Lock()

    def of(self, runs: Sequence[Run]) -> dict[Run, str]:
        """Return a label for every run, each given once; see `sacristan.runs.stores.settings.run_labels`."""
        return dict(zip(runs, self._remembered(runs, _labels), strict=True))

    def telling(self, runs: Sequence[Run]) -> list[str]:
        return self._remembered(runs, telling_settings)

    def _remembered(self, runs: Sequence[Run], compute: Callable[[Sequence[Run]], list[str]]) -> list[str]:
        prefetch(runs, ["uid", "start_time", "display_name"])
        named = (
            (run.store.where, run.id, run.uid, str(run.get("start_time")), str(run.get("display_name"))) for run in runs
        )
        key = (compute, *named)
        # Panels of one page ask at once, and the first computes; none waits longer for a store that does not answer.
        is_mine = self._lock.acquire(timeout=_PATIENCE_S)
        try:
            result = self._known.get(key)
            if result is None:
                result = compute(runs)
                if all(run.get("config") for run in runs):  # else it may be about to be written
                    self._known[key] = result
                if len(self._known) > _MAX_LABELLED:
                    self._known.pop(next(iter(self._known)), None)
            return result
        finally:
            if is_mine:
                self._lock.release()


def _labels(runs: Sequence[Run]) -> list[str]:
    labels = run_labels(runs)
    return [labels[run] for run in runs]


@dataclasses.dataclass(frozen=True)
class Board:
    """A store on the board, as a visitor sees it; a board of one unnamed store has an empty `name`."""

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
        return f"/s/{self.name}" if self.name else ""


def field_of(run: Run, name: str) -> Any:
    """Return a field of a run, its tags or its id; None if the run was damaged since it was found."""
    try:
        return run.tags if name == "tags" else run.id if name == "id" else run.get(name)
    except StoreError:
        return None


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
    """A request, in the thread of a store."""

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
        """Return a parameter of the URL that must be a finite number, as `expected` says; None if it is missing."""
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
        return HTMLResponse(render(template, board=self.board, path=self.request.url.path, **values), status_code)


def _status_of(error: RunsError) -> int:
    statuses = {RunNotFoundError: 404, RemovedError: 404, FilterError: 400, StoreAwayError: 503}
    return next((status for kind, status in statuses.items() if isinstance(error, kind)), 409)


Handler = Callable[[Visit], Response]


def page(path: str, handler: Handler, method: str = "GET", role: Role | None = None) -> Route:
    """Create the route of a page. By default, GET needs the role `READ`, and POST `WRITE`."""
    needed = role if role is not None else Role.READ if method == "GET" else Role.WRITE

    async def endpoint(request: Request) -> Response:
        board = board_of(request)
        if board.visitor.role < needed:
            why = f"{board.visitor.name} has the role {board.visitor.role.word}; this needs the role {needed.word}"
            return _problem(board, request, why, 403)
        try:
            form = await read_body(request) if method == "POST" else {}
            is_navigation = request.headers.get("sec-fetch-dest") == "document"  # not fetched, saved or framed
            if is_navigation and (progress := board.pool.progress):
                return _reading(board, progress)

            def ask(store: Store) -> Response:
                store.author = board.visitor.author
                return _answer(handler, Visit(board, store, request, form))

            answer = asyncio.ensure_future(board.pool.ask(ask))
            while is_navigation and not (await asyncio.wait({answer}, timeout=_PATIENCE_S))[0]:
                if progress := board.pool.progress:
                    answer.add_done_callback(_forget)
                    return _reading(board, progress)
            return await answer
        except HTTPException as error:
            return _problem(board, request, error.detail, error.status_code)
        except RunsError as error:
            discarded = error.key if isinstance(error, DiscardedError) else ""
            problem = _problem(board, request, str(error), _status_of(error), discarded)
            if isinstance(error, StoreAwayError):
                problem.headers["retry-after"] = _RETRY_S
            return problem

    named: Callable[[Request], Awaitable[Response]] = endpoint
    return Route(path, named, methods=[method])


def _answer(handler: Handler, visit: Visit) -> Response:
    """Return the answer to a visit; ask again while others remove runs that it has just found."""
    for _ in range(_MOST_REMOVALS if visit.request.method == "GET" else 0):
        with contextlib.suppress(RemovedError):
            return handler(visit)
    return handler(visit)


def _forget(answer: asyncio.Future[Response]) -> None:
    """Retrieve the error of an abandoned visit; the next request reports it."""
    if not answer.cancelled():
        answer.exception()


def _reading(board: Board, progress: tuple[str, int, int]) -> Response:
    """Return the page that shows the progress while a new or much changed store is being read."""
    page = render("reading.html", board=board, path="", progress=progress)
    return HTMLResponse(page, 202, {"refresh": _RELOAD_S, "cache-control": "no-store"})


def _problem(board: Board, request: Request, sentence: str, status: int, discarded: str = "") -> Response:
    """Answer with why a page cannot be shown; `discarded` is the key of its run in the trash."""
    if "text/html" not in request.headers.get("accept", ""):
        return json_response({"error": sentence, **({"discarded": discarded} if discarded else {})}, status)
    return HTMLResponse(render("problem.html", board=board, path="", problem=sentence, discarded=discarded), status)
