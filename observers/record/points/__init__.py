"""The points of a run as arrays: their layout on disk and in memory, the metrics in them, and their summaries.

Reading them from a run's folder is in `sacristan.observers.record.points.intact_points`. A summary is a curve in ten
numbers, extended as points are logged. The sum behind each mean is exact, so that the same points have the same
summary, however they arrived: in a few large heartbeats or many small ones, in one session or several, copied or
imported.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sacristan.configs.packages import numpy as np

if TYPE_CHECKING:
    import pandas

__all__ = [
    "NO_SUMMARIES",
    "POINT",
    "POINT_BYTES",
    "SLOT",
    "SLOT_BYTES",
    "STAMP_SHIFT",
    "TICKS_PER_S",
    "GrowingSummaries",
    "Metric",
    "Names",
    "Series",
    "Summaries",
    "add_packed_to_summaries",
    "add_to_summaries",
    "by_name",
    "few_points",
    "is_rewound",
    "needs_numpy",
    "of_metrics",
    "packed",
    "points_in",
    "rows_by_metric",
    "split_metrics",
    "summarize",
    "to_steps",
]

# metric: id in metrics.names.jsonl; time: ticks since the run started; step: see `to_steps`.
POINT = [("metric", "<u4"), ("time", "<u4"), ("step", "<i8"), ("value", "<f8")]
POINT_BYTES = 24
# The same for a point in `metrics.live`, in the machine's byte order; the tag is written last.
SLOT = [("step", "=i8"), ("value", "=f8"), ("time", "=u4"), ("tag", "=u4")]
SLOT_BYTES = 24
STAMP_SHIFT = 24
_POINT = struct.Struct("<IIqd")
# The same of a point and a slot, with the bits of the value as an int.
_POINT_BITS, _SLOT_BITS = struct.Struct("<IIqq"), struct.Struct("=qqII")
_STEP, _FLOAT_STEP = struct.Struct("<q"), struct.Struct("<d")
# So many points take less time without NumPy than NumPy takes to be imported, in a script that does not use it.
_FEW = 1000
# A tick is 10 ms, so 32 bits of ticks last for 497 days.
TICKS_PER_S = 100

# By metric id: the name, and whether steps are floats.
Names = Mapping[int, tuple[str, bool]]


@dataclasses.dataclass(frozen=True, eq=False)
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


def needs_numpy(num_points: int) -> bool:
    """Return whether to handle points with NumPy: it is imported already, or they are many."""
    return "numpy" in sys.modules or num_points > _FEW


def packed(slots: bytes, stamp: int) -> bytes:
    """Return the points among the bytes of slots, as they are in `metrics.bin`; see `points_in`."""
    if needs_numpy(len(slots) // SLOT_BYTES):
        return points_in(np.frombuffer(slots, SLOT), stamp).tobytes()
    return b"".join(
        _POINT_BITS.pack((tag & (2**STAMP_SHIFT - 1)) - 1, time, step, bits)
        for step, bits, time, tag in _SLOT_BITS.iter_unpack(slots)
        if tag >> STAMP_SHIFT == stamp
    )


def few_points(points: bytes, names: Names) -> dict[str, list[tuple[int, int | float, float]]]:
    """Return time, step and value of packed points by metric, without those whose id has no name."""
    rows = list(_POINT.iter_unpack(points))
    found: dict[str, list] = {names[number][0]: [] for number in sorted({row[0] for row in rows}) if number in names}
    for number, time, step, value in rows:
        if number in names:
            name, is_float = names[number]
            found[name].append((time, _FLOAT_STEP.unpack(_STEP.pack(step))[0] if is_float else step, value))
    return found


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
    words = np.ascontiguousarray(points).view(np.uint64).reshape(-1, POINT_BYTES // 8)
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


# ---------------------------------------------------------------------- summaries

CHUNK_POINTS = 2**18
# Sums are counted in the least float, 2**-1074, of which every finite float is a multiple.
_UNIT_BITS = 1074
# Greater numbers could overflow while they are split, and are added one by one.
_MAX_SPLIT = 2.0**960


class Summaries(NamedTuple):
    """The summaries of metrics by name, and the exact sum behind each mean, as a multiple of 2**-1074."""

    rows: dict[str, dict[str, Any]]
    totals: dict[str, int]


NO_SUMMARIES = Summaries({}, {})


class GrowingSummaries:
    """The summaries of a file of points that grows; new points are kept in memory until many can be added at once.

    `read` returns points `start` to `stop` of the file, for points that are no longer in memory.
    """

    def __init__(self, read: Callable[[int, int], np.ndarray]) -> None:
        self._read = read
        # The summaries, and the number of points in them, which change together.
        self._done: tuple[Summaries, int] = (NO_SUMMARIES, 0)
        # Packed points that are still in memory, and the number of the first one in the file.
        self._fresh: list[bytes] = []
        self._start = self._num_fresh = 0

    def note(self, start: int, points: bytes) -> bool:
        """Keep packed points that were appended after `start` others; return whether it is time to call `extend`."""
        if self._start + self._num_fresh != start:
            self._fresh, self._start, self._num_fresh = [], start, 0
        self._fresh.append(points)
        self._num_fresh += len(points) // POINT_BYTES
        return self._num_fresh >= CHUNK_POINTS

    def extend(self, num_points: int, names: Names) -> dict[str, dict[str, Any]]:
        """Extend the summaries to all points in the file, and return them."""
        summary, done = self._done
        start, num_fresh, fresh = self._start, self._num_fresh, b"".join(self._fresh)
        self._fresh, self._start, self._num_fresh = [], start + num_fresh, 0
        while done < num_points:
            end = min(done + CHUNK_POINTS, num_points)
            if start <= done and end <= start + num_fresh:
                part = fresh[(done - start) * POINT_BYTES : (end - start) * POINT_BYTES]
                num_new, summary = end - done, add_packed_to_summaries(summary, part, names)
            else:
                points = self._read(done, end)
                num_new, summary = len(points), add_to_summaries(summary, points, names)
            if not num_new:  # the file was removed
                break
            done += num_new
            self._done = summary, done
        return summary.rows

    def restart(self, summary: Summaries, num_points: int) -> None:
        """Replace the summaries, after the file's content was replaced."""
        self._fresh, self._num_fresh = [], 0
        self._done = summary, num_points


def summarize(values: np.ndarray, steps: np.ndarray) -> dict[str, Any]:
    """Return the summary of one metric, from its values and steps (n,), at least one.

    It has `count`, `first`, `last`, `last_step`, `min`, `min_step`, `max`, `max_step`, `mean`. NaN counts as a value
    for `first` and `last` only; `finite` is the number of values in `mean`.
    """
    is_float = steps.dtype.kind == "f"
    rows = np.zeros(len(values), POINT)
    rows["value"] = values
    rows["step"] = steps.astype(np.float64).view(np.int64) if is_float else steps
    return add_to_summaries(NO_SUMMARIES, rows, {0: ("", is_float)}).rows[""]


def add_to_summaries(before: Summaries, points: np.ndarray, names: Names) -> Summaries:
    """Return the summaries after more points; see `summarize`.

    All metrics are processed at once, so ten thousand cost hardly more than one.

    `before` is not modified. Points without a name are skipped.
    """
    if not len(points):
        return before
    groups: dict[str, int] = {}
    # By id: the group, and whether steps are floats. The last entry is for ids without a name.
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
            return before
        rows, starts = points[order], np.searchsorted(group[order], np.arange(len(groups)))
        is_float = float_of[number[order]]
    changed, totals = {}, {}
    for name, new in zip(groups, _summaries_of(rows, is_float, starts), strict=True):
        totals[name] = before.totals.get(name, 0) + new["total"]
        changed[name] = _joined(before.rows.get(name), new, totals[name])
    return Summaries({**before.rows, **changed}, {**before.totals, **totals})


def add_packed_to_summaries(before: Summaries, points: bytes, names: Names) -> Summaries:
    """Return the summaries after more packed points; see `add_to_summaries`."""
    if needs_numpy(len(points) // POINT_BYTES):
        return add_to_summaries(before, np.frombuffer(points, POINT), names)
    rows, totals = dict(before.rows), dict(before.totals)
    for name, new in few_points(points, names).items():
        for _, step, value in new:
            is_finite = math.isfinite(value)
            totals[name] = totals.get(name, 0) + (_in_units(value) if is_finite else 0)
            one = {"count": 1, "finite": int(is_finite), "numbers": int(not math.isnan(value))}
            at = {"first": value, "min": value, "min_step": step, "max": value, "max_step": step}
            rows[name] = _joined(rows.get(name), {**one, **at, "last": value, "last_step": step}, totals[name])
    return Summaries(rows, totals)


def _summaries_of(rows: np.ndarray, is_float: np.ndarray, starts: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield the summary of each group of `rows` (n,), which begin at `starts`, with the exact total for the mean."""
    values = np.ascontiguousarray(rows["value"])
    ends = np.append(starts[1:], len(rows))
    lengths = ends - starts
    finite = np.isfinite(values)
    columns: dict[str, Any] = {
        "count": lengths.tolist(),
        "first": values[starts].tolist(),
        "last": values[ends - 1].tolist(),
        "last_step": _steps(rows, is_float, ends - 1),
    }
    if finite.all():  # the common case, in less than half of the time
        is_nan, summed, num_finite, num_numbers = None, values, lengths, lengths
    else:
        is_nan, summed = np.isnan(values), np.where(finite, values, 0.0)
        num_finite = np.add.reduceat(finite.astype(np.int64), starts)
        num_numbers = np.add.reduceat((~is_nan).astype(np.int64), starts)
    total = _exact_sums(summed, starts, lengths)
    columns |= {"finite": num_finite.tolist(), "total": total, "numbers": num_numbers.tolist()}
    for name, extreme, none in (("min", np.minimum, math.inf), ("max", np.maximum, -math.inf)):
        at = _extremes(values, is_nan, starts, lengths, extreme, none)
        columns |= {name: values[at].tolist(), f"{name}_step": _steps(rows, is_float, at)}
    for entries in zip(*columns.values(), strict=True):
        yield dict(zip(columns, entries, strict=True))


def _exact_sums(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> list[int]:
    """Return the sum of the finite values (n,) of each group, as a multiple of 2**-1074.

    Each round takes so many leading bits from all values that their sum, in any order, is a float without rounding.

    Source: https://doi.org/10.1137/050645671 (algorithm 3.2, ExtractVector)
    """
    if len(values) == len(starts):  # one point of each of many metrics
        return [_in_units(value) for value in values.tolist()]
    totals = [0] * len(starts)
    is_huge = np.abs(values) > _MAX_SPLIT
    if is_huge.any():
        rows = np.flatnonzero(is_huge)
        for group, value in zip(np.searchsorted(starts, rows, "right") - 1, values[rows].tolist(), strict=True):
            totals[group] += _in_units(value)
        values = np.where(is_huge, 0.0, values)
    room = np.frexp(lengths + 2.0)[1]
    while values.any():
        greatest = np.maximum.reduceat(np.abs(values), starts)
        bound = np.repeat(np.ldexp(1.0, np.frexp(greatest)[1] + room), lengths)
        leading = (bound + values) - bound
        values = values - leading
        sums = np.add.reduceat(leading, starts).tolist()
        totals = [total + _in_units(part) if part else total for total, part in zip(totals, sums, strict=True)]
    return totals


def _in_units(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator << (_UNIT_BITS + 1 - denominator.bit_length())


def _extremes(
    values: np.ndarray,
    is_nan: np.ndarray | None,
    starts: np.ndarray,
    lengths: np.ndarray,
    extreme: np.ufunc,
    none: float,
) -> np.ndarray:
    """Return the row of the first extreme of each group; any row for a group of nothing but NaN, which is not used."""
    if is_nan is None and len(starts) == 1:
        return np.array([np.argmin(values) if extreme is np.minimum else np.argmax(values)])
    kept = values if is_nan is None else np.where(is_nan, none, values)
    is_best = kept == np.repeat(extreme.reduceat(kept, starts), lengths)
    if is_nan is not None:
        is_best &= ~is_nan
    return np.minimum.reduceat(np.where(is_best, np.arange(len(values)), len(values) - 1), starts)


def _steps(rows: np.ndarray, is_float: np.ndarray, at: np.ndarray) -> list[int | float]:
    steps = np.ascontiguousarray(rows["step"][at])
    if not is_float.any():
        return steps.tolist()
    decoded = to_steps(steps, True).tolist()
    return [b if f else a for a, b, f in zip(steps.tolist(), decoded, is_float[at].tolist(), strict=True)]


def _joined(before: Mapping[str, Any] | None, new: dict[str, Any], total: int) -> dict[str, Any]:
    """Return the summary of all points: `before` for the earlier ones, `new` for those that follow; `total` of both."""
    row = dict(before or {"count": 0, "first": new["first"], "finite": 0, "mean": math.nan})
    for name, is_better in (("min", float.__lt__), ("max", float.__gt__)):
        if new["numbers"] and (name not in row or is_better(new[name], float(row[name]))):
            row |= {name: new[name], f"{name}_step": new[f"{name}_step"]}
    if new["finite"]:
        row["finite"] += new["finite"]
        row["mean"] = total / (row["finite"] << _UNIT_BITS)  # of two ints, which Python rounds correctly
    row["count"] += new["count"]
    row |= {"last": new["last"], "last_step": new["last_step"]}
    return row
