"""Histograms of any floats, even the greatest ones and those closest to each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["binned", "count_values"]

_NONE: dict[str, Any] = {"num": 0, "min": None, "max": None, "mean": None}


def count_values(values: np.ndarray, bins: int) -> dict[str, Any]:
    """Count values into bins of equal width.

    Args:
        values: Real numbers of any shape.
        bins: Number of bins.

    Returns:
        The histogram as JSON holds it: `edges` (bins + 1,) and `counts` (bins,), both empty if no value is finite;
        `num`, `min`, `max`, `mean` of the finite values; the numbers of `nan`, `inf` and `-inf`.
    """
    values = values.reshape(-1).astype(np.float64)
    odd = {"nan": int(np.isnan(values).sum()), "inf": int((values == math.inf).sum())}
    odd["-inf"] = int((values == -math.inf).sum())
    good = values[np.isfinite(values)]
    if not len(good):
        return {"edges": [], "counts": [], **_NONE, **odd}
    low, high = float(good.min()), float(good.max())
    # The distance between the greatest floats is no float.
    scale = 4.0 if max(-low, high) > 1e300 else 1.0
    counts, edges = np.histogram(good / scale, bins, _bounds(low / scale, high / scale, bins))
    edges *= scale
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)  # undo the rounding of scaling
    with np.errstate(over="ignore"):
        mean = float(good.mean())
        if not math.isfinite(mean):
            mean = min(max(low, float((good / len(good)).sum())), high)
    summary = {"num": len(good), "min": low, "max": high, "mean": mean}
    return {"edges": edges.tolist(), "counts": counts.tolist(), **summary, **odd}


def _bounds(low: float, high: float, bins: int) -> tuple[float, float]:
    """Return bounds around low to high with enough different floats between them for the edges of the bins."""
    least = max(4 * bins * float(np.spacing(max(-low, high))), 1e-290, 0.5 if low == high else 0.0)
    if high - low >= least:
        return low, high
    greatest, middle = float(np.finfo(np.float64).max) / 4, low + (high - low) / 2
    return max(middle - least / 2, -greatest), min(middle + least / 2, greatest)


def binned(counts: np.ndarray, edges: np.ndarray) -> dict[str, Any]:
    """Return a histogram as from `count_values`, of values that are counted already.

    Args:
        counts: (n,) number of values in each bin.
        edges: (n + 1,) rising bounds of the bins; `mean` takes the middles of the bins for the values.
    """
    total = float(counts.sum())
    summary: dict[str, float | None] = dict(_NONE)
    if total:
        filled = np.flatnonzero(counts)
        middles = edges[:-1] + np.diff(edges) / 2
        summary = {"num": total, "min": edges[filled[0]].item(), "max": edges[filled[-1] + 1].item()}
        summary["mean"] = float((middles * (counts / total)).sum())
    return {"edges": edges.tolist(), "counts": counts.tolist(), **summary, "nan": 0, "inf": 0, "-inf": 0}
