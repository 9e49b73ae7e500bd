"""Answers to the scripts of pages: documents, many numbers, and HTML that a page watches."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from sacristan.runs.query.strict_json import strict

__all__ = ["json_response", "look_again_s", "numbers_response", "version_of", "watched"]

_LOOK_S, _SHARE = 2.0, 20


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
    """Return HTML to a page that watches it, without a body if it has not changed; see `watch` in board.js.

    Names of further headers have `_` for `-`. The page asks again after `again_s` seconds.
    """
    tag = f'"{version_of(body)}"'
    headers = {"etag": tag, "x-look-again-s": f"{again_s:.1f}"}
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(body, headers=headers)


def look_again_s(started: float, least_s: float = _LOOK_S) -> float:
    """Return the seconds until a page asks again, so that its requests take at most a twentieth of the time.

    `started` is when this request began, by `time.perf_counter`.
    """
    return max(least_s, _SHARE * (time.perf_counter() - started))


def version_of(text: str) -> str:
    """Return a short digest that identifies the version of a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
