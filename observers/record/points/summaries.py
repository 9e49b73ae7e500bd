"""The summary of every metric: what there is to say of a curve in ten numbers, kept up with the points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from observers.record.points.points import POINT, read_intact_points, to_steps
from observers.record.schema import read_names

__all__ = ["add_to_summaries", "summaries", "summarize"]

_CHUNK_POINTS = 2**18


def summarize(values: np.ndarray, steps: np.ndarray, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the summary of a metric after more points, without looking at the old ones.

    Args:
        values: (n,) new values, at least one.
        steps: (n,) their steps.
        before: The summary so far.

    Returns:
        `count`, `first`, `last`, `last_step`, `min`, `min_step`, `max`, `max_step`, `mean`. NaN counts as a value for
        `first` and `last` alone; `finite` is the number of values that `mean` is over.
    """
    rows = np.zeros(len(values), POINT)
    is_float = np.full(len(values), steps.dtype.kind == "f")
    rows["value"] = values
    rows["step"] = steps.astype(np.float64).view(np.int64) if is_float.any() else steps
    return _joined(before, next(_summaries_of(rows, is_float, np.zeros(1, np.intp))))


def summaries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the summary of every metric, from all points in `metrics.bin` that are not damaged."""
    found: dict[str, dict[str, Any]] = {}
    names, start = read_names(folder), 0
    while True:
        points, count = read_intact_points(folder, start, start + _CHUNK_POINTS)
        if not count:
            return found
        found = add_to_summaries(found, points, names)
        start += count


def add_to_summaries(
    before: Mapping[str, dict[str, Any]], points: np.ndarray, names: Mapping[int, tuple[str, bool]]
) -> dict[str, dict[str, Any]]:
    """Return the summaries after more points, without looking at the old ones; see `summarize`.

    The work is done for all metrics at once, so that ten thousand of them cost hardly more than one.

    Args:
        before: The summaries so far, which are not changed.
        points: (n,) of `schema.POINT`; those without a name are passed over.
        names: Name of each metric's id, and whether its steps are floats.
    """
    if not len(points):
        return dict(before)
    groups: dict[str, int] = {}
    # By number: group, and whether steps are floats. The last entry is of numbers without a name.
    last = max(names, default=-1) + 1
    group_of, float_of = np.full(last + 1, -1), np.zeros(last + 1, bool)
    number = np.minimum(points["metric"], last)
    present = np.flatnonzero(np.bincount(number)).tolist()
    for each in present:
        if each in names:
            name, float_of[each] = names[each]
            group_of[each] = groups.setdefault(name, len(groups))
    if len(groups) == len(present) == 1:
        rows, starts, is_float = points, np.zeros(1, np.intp), float_of[number]
    else:
        group = group_of[number]
        order = np.argsort(group, kind="stable")
        order = order[np.searchsorted(group[order], 0) :]
        if not len(order):
            return dict(before)
        rows, starts = points[order], np.searchsorted(group[order], np.arange(len(groups)))
        is_float = float_of[number[order]]
    changed = {
        name: _joined(before.get(name), new)
        for name, new in zip(groups, _summaries_of(rows, is_float, starts), strict=True)
    }
    return {**before, **changed}


def _summaries_of(rows: np.ndarray, is_float: np.ndarray, starts: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield the summary of each group of `rows` (n,), which begin at `starts`; `total` stands for the mean."""
    values = np.ascontiguousarray(rows["value"])
    ends = np.append(starts[1:], len(rows))
    finite = np.isfinite(values)
    are_finite = bool(finite.all())
    is_nan = np.isnan(values) if not are_finite else np.zeros(1, bool)
    with np.errstate(over="ignore"):
        total = np.add.reduceat(values if are_finite else np.where(finite, values, 0.0), starts)
    num_finite = ends - starts if are_finite else np.add.reduceat(finite.astype(np.int64), starts)
    num_numbers = num_finite if are_finite else np.add.reduceat((~is_nan).astype(np.int64), starts)
    columns = {
        "count": (ends - starts).tolist(),
        "first": values[starts].tolist(),
        "last": values[ends - 1].tolist(),
        "last_step": _steps(rows, is_float, ends - 1),
        "finite": num_finite.tolist(),
        "total": total.tolist(),
        "numbers": num_numbers.tolist(),
    }
    for name, extreme, none, find in (
        ("min", np.minimum, math.inf, np.argmin),
        ("max", np.maximum, -math.inf, np.argmax),
    ):
        if are_finite and len(starts) == 1:
            at = np.array([find(values)])
        else:
            kept = np.where(is_nan, none, values) if not are_finite else values
            best = np.repeat(extreme.reduceat(kept, starts), ends - starts)
            # The first of the best ones; a group of nothing but NaN has any, which is not looked at.
            is_best = kept == best if are_finite else (kept == best) & ~is_nan
            at = np.minimum.reduceat(np.where(is_best, np.arange(len(rows)), len(rows) - 1), starts)
        columns |= {name: values[at].tolist(), f"{name}_step": _steps(rows, is_float, at)}
    for entries in zip(*columns.values(), strict=True):
        yield dict(zip(columns, entries, strict=True))


def _steps(rows: np.ndarray, is_float: np.ndarray, at: np.ndarray) -> list[int | float]:
    steps = np.ascontiguousarray(rows["step"][at])
    if not is_float.any():
        return steps.tolist()
    decoded = to_steps(steps, True).tolist()
    return [b if f else a for a, b, f in zip(steps.tolist(), decoded, is_float[at].tolist(), strict=True)]


def _joined(before: Mapping[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of all points: `before` of the earlier ones, `new` of those that follow."""
    row = dict(before or {"count": 0, "first": new["first"], "finite": 0, "mean": math.nan})
    for name, is_better in (("min", float.__lt__), ("max", float.__gt__)):
        if new["numbers"] and (name not in row or is_better(new[name], float(row[name]))):
            row |= {name: new[name], f"{name}_step": new[f"{name}_step"]}
    if new["finite"]:
        total = (row["mean"] * row["finite"] if row["finite"] else 0.0) + new["total"]
        row["finite"] += new["finite"]
        row["mean"] = total / row["finite"]
    row["count"] += new["count"]
    row |= {"last": new["last"], "last_step": new["last_step"]}
    return row
