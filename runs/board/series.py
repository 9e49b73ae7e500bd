"""Curves: the points of a metric, as many as a plot has room for."""

from __future__ import annotations

import math
import time

import numpy as np
from starlette.responses import Response

from runs.board.visits import Visit, json_response, page
from runs.errors import StoreError

__all__ = ["ROUTES"]

_MIN_POINTS, _USUAL_POINTS, _MAX_POINTS = 16, 1_000, 20_000
_LOOK_S, _SHARE = 2.0, 20


def _series(visit: Visit) -> Response:
    """Answer with points of a metric: of all, or of those between two steps, extremes kept."""
    started = time.perf_counter()
    run = visit.store.get(visit.asked("run"))
    points = visit.number("points", _USUAL_POINTS, _MIN_POINTS, _MAX_POINTS)
    found = run.metric(visit.asked("metric"), points, between=(_bound(visit, "from"), _bound(visit, "to")))
    return json_response(
        {
            "steps": found.steps.tolist(),
            "values": _plain(found.values),
            "times": _plain(found.times),
            "living": run.is_living,
            "look_again_s": max(_LOOK_S, _SHARE * (time.perf_counter() - started)),
        }
    )


def _bound(visit: Visit, name: str) -> float | None:
    text = visit.asked(name)
    if not text:
        return None
    try:
        bound = float(text[:40])
    except ValueError:
        bound = math.nan
    if math.isnan(bound):
        raise StoreError(f"{name}: got {text[:40]!r}, expected a step")
    return bound


def _plain(values: np.ndarray) -> list[float | None]:
    """Return numbers as JSON has them; a gap in the curve where there is none."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


ROUTES = [page("/series", _series)]
