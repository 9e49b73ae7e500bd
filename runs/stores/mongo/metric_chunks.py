"""Points of a metric in MongoDB beyond those in its document in Sacred's form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from observers.record.points.points import POINT, TICKS_PER_S, Series, to_steps

__all__ = ["joined"]


def joined(series: Series, chunks: Iterable[Mapping[str, Any]]) -> Series:
    """Append the points of chunks to a series.

    Args:
        series: The first points.
        chunks: Documents of `metrics_chunks` with `data` and `float_steps`, in order.
    """
    steps, values, times = [series.steps], [series.values], [series.times]
    for chunk in chunks:
        points = np.frombuffer(chunk["data"], POINT)
        steps.append(to_steps(np.ascontiguousarray(points["step"]), bool(chunk.get("float_steps"))))
        # A copy does not keep the chunk in memory.
        values.append(points["value"].copy())
        times.append(points["time"] / TICKS_PER_S)
    return Series(*map(_concatenated, (steps, values, times)))


def _concatenated(parts: list[np.ndarray]) -> np.ndarray:
    """Join arrays, and clear the list, so that memory does not hold them twice."""
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    parts.clear()
    return whole
