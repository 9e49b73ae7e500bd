"""Curves: the points of a metric, as many as a plot has pixels."""

from __future__ import annotations

import math
import time

import numpy as np
from starlette.responses import Response

from runs.board.visits import Visit, json_response, look_again_s, page
from runs.comparison.curves import smoothed
from runs.query.decimation import pixels

__all__ = ["ROUTES"]

_MIN_PIXELS, _USUAL_PIXELS, _MAX_PIXELS = 16, 500, 8_000


def _series(visit: Visit) -> Response:
    """Answer with the points that draw a metric, smoothed or not, or the part of it between two steps or times."""
    started = time.perf_counter()
    run = visit.store.get(visit.asked("run"))
    series = run.metric(visit.asked("metric"))
    positions = series.times if visit.asked("axis") == "times" else series.steps
    order = np.argsort(positions, kind="stable") if np.any(np.diff(positions) < 0) else slice(None)
    num_pixels = visit.number("pixels", _USUAL_PIXELS, _MIN_PIXELS, _MAX_PIXELS)
    bounds = visit.bound("from"), visit.bound("to")
    values = series.values[order]
    chosen = pixels(positions[order], values, num_pixels, *bounds)
    weight = visit.bound("smoothing", "a number from 0 to below 1") or 0.0
    averages = smoothed(values, weight)
    if weight:  # of all points, and what draws either curve
        chosen = np.union1d(chosen, pixels(positions[order], averages, num_pixels, *bounds))
    return json_response(
        {
            "steps": series.steps[order][chosen].tolist(),
            "values": _plain(values[chosen]),
            "smoothed": _plain(averages[chosen]) if weight else None,
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
