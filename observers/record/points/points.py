"""The points of a run as arrays: their layout on disk and in memory, and the metrics in them.

Reading them from a run's folder is in `sacristan.observers.record.points.intact_points`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas

__all__ = [
    "POINT",
    "SLOT",
    "STAMP_SHIFT",
    "TICKS_PER_S",
    "Metric",
    "Names",
    "Series",
    "by_name",
    "is_rewound",
    "of_metrics",
    "points_in",
    "rows_by_metric",
    "split_metrics",
    "to_steps",
]

# metric: id in metrics.names.jsonl; time: ticks since the run started; step: see `to_steps`.
POINT = np.dtype([("metric", "<u4"), ("time", "<u4"), ("step", "<i8"), ("value", "<f8")])
# The same for a point in `metrics.live`, in the machine's byte order; the tag is written last.
SLOT = np.dtype([("step", "=i8"), ("value", "=f8"), ("time", "=u4"), ("tag", "=u4")])
STAMP_SHIFT = 24
# A tick is 10 ms, so 32 bits of ticks last for 497 days.
TICKS_PER_S = 100

# By metric id: the name, and whether steps are floats.
Names = Mapping[int, tuple[str, bool]]


@dataclasses.dataclass(frozen=True)
class Series:
    """The points of one metric, in the order of logging.

    Attributes:
        steps: (n,) int64, or float64 if any step was not an integer.
        values: (n,) float64; NaN and infinities as logged.
        times: (n,) float64, seconds since the run started, with a resolution of 10 ms.

    Example:
        series = run.metric("train/loss")
        print(series.steps[-1], series.values[-1], series.values.min())
    """

    steps: np.ndarray
    values: np.ndarray
    times: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def between(self, first: float | None, last: float | None) -> Series:
        """Return the points from one step to another, plus one point on either side, in the order of logging.

        Args:
            first: The lowest step to include; None for no lower bound.
            last: The highest step to include; None for no upper bound.

        Returns:
            A `Series` that shares this one's memory; empty if no step is in the range.
        """
        low = -np.inf if first is None else first
        high = np.inf if last is None else last
        inside = np.flatnonzero((self.steps >= low) & (self.steps <= high))
        part = slice(max(int(inside[0]) - 1, 0), int(inside[-1]) + 2) if len(inside) else slice(0)
        return Series(self.steps[part], self.values[part], self.times[part])

    def to_pandas(self) -> pandas.DataFrame:
        """Return the points as a pandas DataFrame with the columns `step`, `value` and `time` (seconds)."""
        import pandas

        return pandas.DataFrame({"step": self.steps, "value": self.values, "time": self.times})


class Metric:
    """One metric: the tags of its points, and how far it got.

    Attributes:
        tag: Its id plus one, for points whose step is an int; 0 before it has an id.
        float_tag: The same for points whose step is a float.
        last: The last step; -1 before the first point.
    """

    __slots__ = ("count", "float_tag", "last", "name", "tag")

    def __init__(self, name: str) -> None:
        self.name = name
        self.tag = self.float_tag = self.count = 0
        self.last: int | float = -1


def is_rewound(name: str) -> bool:
    """Tell whether rewinding a run to a checkpoint removes later points of a metric.

    `system/...` describes the machine, whose past no rewinding undoes.
    """
    return not name.startswith("system/")


def to_steps(steps: np.ndarray, as_float: bool) -> np.ndarray:
    """Decode the field `step` of `POINT`, contiguous int64 (n,); float steps are stored by their 64 bits."""
    return (steps.view("<f8") if as_float else steps).astype(np.float64 if as_float else np.int64, copy=False)


def points_in(slots: np.ndarray, stamp: int) -> np.ndarray:
    """Return the points (m,) of `POINT` among the slots (n,) of `SLOT` of one half of `metrics.live`, as logged.

    Slots with another `stamp` than the half's current one are empty or left over.
    """
    is_point = slots["tag"] >> STAMP_SHIFT == stamp
    if not is_point.all():
        slots = slots[is_point]
    points = np.empty(len(slots), POINT)
    if sys.byteorder == "big":
        for field in ("time", "step", "value"):
            points[field] = slots[field]
        points["metric"] = (slots["tag"] & (2**STAMP_SHIFT - 1)) - 1
        return points
    # The same in words of 32 bits (step, value, time, tag), which numpy copies in a fraction of the time.
    words, copied = slots.view("u4").reshape(-1, 6), points.view("u4").reshape(-1, 6)
    copied[:, 2:] = words[:, :4]
    copied[:, 1] = words[:, 4]
    copied[:, 0] = (words[:, 5] & (2**STAMP_SHIFT - 1)) - 1
    return points


def of_metrics(points: np.ndarray, numbers: Iterable[int]) -> np.ndarray:
    """Return the points of some metrics."""
    metric = points["metric"]
    chosen = np.zeros(len(points), bool)
    for number in numbers:
        chosen |= metric == number
    return points if chosen.all() else _taken(points, np.flatnonzero(chosen))


def by_name(points: np.ndarray, names: Names) -> dict[str, np.ndarray]:
    """Split points by metric, with an empty array for a name without points.

    Points whose id has no name are left out. A metric with steps of both kinds has two ids.
    """
    numbers: dict[str, list[int]] = {}
    for number, (name, _) in names.items():
        numbers.setdefault(name, []).append(number)
    rows = rows_by_metric(points["metric"])
    none = np.empty(0, np.intp)
    parts = {}
    for name, ids in numbers.items():
        chosen = [rows[number] for number in ids if number in rows]
        if len(chosen) > 1:
            chosen = [np.sort(np.concatenate([np.arange(len(points))[each] for each in chosen]))]
        parts[name] = _taken(points, chosen[0] if chosen else none)
    return parts


def split_metrics(points: np.ndarray, names: Names) -> dict[str, Series]:
    """Return every metric as a `Series`, including metrics without points."""
    kinds: dict[str, set[bool]] = {}
    for name, as_float in names.values():
        kinds.setdefault(name, set()).add(as_float)
    series = {}
    for name, part in by_name(points, names).items():
        steps = np.ascontiguousarray(part["step"])
        if len(kinds[name]) == 1:
            steps = to_steps(steps, *kinds[name])
        else:
            floats = [number for number, (_, as_float) in names.items() if as_float]
            is_float = np.isin(part["metric"], floats)
            steps = np.where(is_float, to_steps(steps, True), steps.astype(np.float64))
        series[name] = Series(steps, part["value"].astype(np.float64), part["time"] / TICKS_PER_S)
    return series


def _taken(points: np.ndarray, rows: np.ndarray | slice) -> np.ndarray:
    """Return some of the points, in words of 64 bits, which numpy takes in a tenth of the time of structures."""
    if isinstance(rows, slice):
        return points[rows]
    words = np.ascontiguousarray(points).view(np.uint64).reshape(-1, POINT.itemsize // 8)
    return words.take(rows, 0).view(POINT).reshape(-1)


def rows_by_metric(metric: np.ndarray) -> dict[int, np.ndarray | slice]:
    """Return the rows of each metric's points, in order; a slice if there is only one metric."""
    metric = np.ascontiguousarray(metric)
    if not len(metric):
        return {}
    if (metric == metric[0]).all():
        return {int(metric[0]): slice(None)}
    # One stable sort splits all metrics at once and keeps the order in each; for 16 bits it is a radix sort.
    order = np.argsort(metric.astype(np.uint16) if metric.max() < 2**16 else metric, kind="stable")
    ordered = metric[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] + 1))
    return dict(zip(ordered[starts].tolist(), np.split(order, starts[1:]), strict=True))
