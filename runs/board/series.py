"""Curves: the points of a metric, as many as a plot has pixels."""

from __future__ import annotations

import math
import time

import numpy as np
from starlette.responses import Response

from runs.board.visits import Visit, json_response, look_again_s, page
from runs.drawing.decimation import pixels

__all__ = ["ROUTES"]

_MIN_PIXELS, _USUAL_PIXELS, _MAX_PIXELS = 16, 500, 8_000


def _series(visit: Visit) -> Response:
    """Answer with the points of a metric that draw its curve, or the part of it between two steps or times."""
    started = time.perf_counter()
    run = visit.store.get(visit.asked("run"))
    series = run.metric(visit.asked("metric"))
    positions = series.times if visit.asked("axis") == "times" else series.steps
    order = np.argsort(positions, kind="stable") if np.any(np.diff(positions) < 0) else slice(None)
    num_pixels = visit.number("pixels", _USUAL_PIXELS, _MIN_PIXELS, _MAX_PIXELS)
    bounds = visit.bound("from"), visit.bound("to")
    chosen = pixels(positions[order], series.values[order], num_pixels, *bounds)
    return json_response(
        {
            "steps": series.steps[order][chosen].tolist(),
            "values": _plain(series.values[order][chosen]),
            "times": series.times[order][chosen].tolist(),
            "count": len(series),
            "living": run.is_living,
            "look_again_s": look_again_s(started),
        }
    )


def _plain(values: np.ndarray) -> list[float | None]:
    """Return numbers as JSON has them; a gap in the curve where there is none."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


ROUTES = [page("/series", _series)]
