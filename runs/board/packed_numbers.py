"""Answers with many numbers, which are sent as they lie in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.responses import Response

from runs.query.strict_json import strict

__all__ = ["numbers_response"]


def numbers_response(value: Mapping[str, Any]) -> Response:
    """Return a document with arrays of numbers, in a twentieth of the time that JSON takes on either side.

    The body is the length of the JSON (4 bytes), the JSON,
    and behind it, from the next multiple of 8 on, numbers of 64 bits. In the JSON, `{"numbers": [first, count]}` stands
    for an array, whose NaN are gaps; see `fetchNumbers` in plots.js.
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
        if digest not in places:  # the steps of many runs are the same
            places[digest] = [end, len(item)]
            arrays.append(numbers)
            end += len(item)
        return {"numbers": places[digest]}

    head = json.dumps(placed(value), separators=(",", ":")).encode()
    head += b" " * (-(4 + len(head)) % 8)
    body = b"".join([len(head).to_bytes(4, "little"), head, *arrays])
    # Numbers do not get shorter by being compressed.
    return Response(body, media_type="application/octet-stream", headers={"content-encoding": "identity"})
