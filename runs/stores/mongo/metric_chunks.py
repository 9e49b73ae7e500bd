"""Points of a metric in MongoDB beyond those that its document in Sacred's form holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from observers.record.points.points import POINT, TICKS_PER_S, Series, to_steps

__all__ = ["joined"]


def joined(series: Series, chunks: Iterable[Mapping[str, Any]]) -> Series:
    """Return a series with the points of `metrics_chunks` behind it, if there are any."""
    steps, values, times = [series.steps], [series.values], [series.times]
    for chunk in chunks:
        points = np.frombuffer(chunk["data"], POINT)
        steps.append(to_steps(np.ascontiguousarray(points["step"]), bool(chunk.get("float_steps"))))
        # Copied, so that the chunk is not held until the end.
        values.append(points["value"].copy())
        times.append(points["time"] / TICKS_PER_S)
    return Series(*map(_concatenated, (steps, values, times)))


def _concatenated(parts: list[np.ndarray]) -> np.ndarray:
    """Return arrays as one, and leave the list empty, so that they are not held twice."""
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    parts.clear()
    return whole
