"""The points of a run as they lie on the disk, and how they are read: numpy, where `schema` has none."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import operator
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from observers.record.points.checksums import damaged, read_blocks
from observers.record.regular_file import open_regular
from observers.record.schema import (
    CHILD_POINTS,
    LIVE,
    POINTS,
    SUMS,
    read_names,
)

if TYPE_CHECKING:
    import pandas

__all__ = [
    "POINT",
    "SLOT",
    "STAMP_SHIFT",
    "TICKS_PER_S",
    "Series",
    "has_latest_points",
    "points_in",
    "read_all_points",
    "read_intact_points",
    "read_live",
    "read_metric",
    "read_metrics",
    "read_points",
    "split_metrics",
    "to_steps",
]

_log = logging.getLogger(__name__)

# metric: number in metrics.names.jsonl; time: ticks since the run started; step: see `to_steps`.
POINT = np.dtype([("metric", "<u4"), ("time", "<u4"), ("step", "<i8"), ("value", "<f8")])
# The same of a point in `metrics.live`, in the machine's byte order; its tag is written last.
SLOT = np.dtype([("step", "=i8"), ("value", "=f8"), ("time", "=u4"), ("tag", "=u4")])
STAMP_SHIFT = 24
# Points that are held at once where one metric of several is read: 24 MB.
_PIECE = 2**20
# How often points that seem to be damaged are looked at: they may have been replaced meanwhile.
_LOOKS = 3
# Damage that was told: the folder and the sentence.
_told: set[tuple[Path, str]] = set()
# A tick is 10 ms, so that 32 bits of them last for 497 days.
TICKS_PER_S = 100


@dataclasses.dataclass(frozen=True)
class Series:
    """The points of one metric, in the order in which they were logged.

    Attributes:
        steps: (n,) int64, or float64 where a step was no integer.
        values: (n,) float64; NaN and infinities as logged.
        times: (n,) float64, seconds since the run started, to 10 ms.

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
        """Return the points in a range of steps, with one more on either side so that lines reach the edges.

        Args:
            first, last: The least and the greatest step; None for no bound.

        Returns:
            A series in the order of logging.
        """
        low = -np.inf if first is None else first
        high = np.inf if last is None else last
        inside = np.flatnonzero((self.steps >= low) & (self.steps <= high))
        if not len(inside):
            return Series(self.steps[:0], self.values[:0], self.times[:0])
        part = slice(max(int(inside[0]) - 1, 0), int(inside[-1]) + 2)
        return Series(self.steps[part], self.values[part], self.times[part])

    def to_pandas(self) -> pandas.DataFrame:
        """Return the points as a pandas DataFrame of the columns `step`, `value` and `time` (seconds)."""
        import pandas

        return pandas.DataFrame({"step": self.steps, "value": self.values, "time": self.times})


def read_points(folder: Path, start: int = 0, stop: int | None = None) -> np.ndarray:
    """Return points `start` to `stop` as an array (n,) of `POINT`; empty if there are none."""
    try:
        with open_regular(folder / POINTS) as stream:
            count = os.fstat(stream.fileno()).st_size // POINT.itemsize
            stop = count if stop is None else min(stop, count)
            if stop <= start:
                return np.empty(0, POINT)
            return np.fromfile(stream, POINT, stop - start, offset=start * POINT.itemsize)
    except FileNotFoundError:
        return np.empty(0, POINT)


def last_time(folder: Path) -> float:
    """Return the time of the last point that was moved to its file, in seconds since the start; 0 without any."""
    with contextlib.suppress(OSError):
        count = (folder / POINTS).stat().st_size // POINT.itemsize
        return float(read_points(folder, max(0, count - 1))["time"].max(initial=0)) / TICKS_PER_S
    return 0.0


def read_intact_points(folder: Path, start: int = 0, stop: int | None = None) -> tuple[np.ndarray, int]:
    """Return those of points `start` to `stop` that are not damaged, and how many there are with the damaged ones.

    Blocks whose checksum differs are left out, and said once.
    """
    for _ in range(_LOOKS):
        # Before the points, for each is written behind its block.
        blocks = read_blocks(folder / SUMS, start, stop)
        first = min([start, *(block[0] for block in blocks)])
        ends = [block[0] + block[1] for block in blocks]
        points = read_points(folder, first, None if stop is None else max([stop, *ends]))
        bad = damaged(blocks, points, first)
        missing = max([0, *ends]) - first - len(points) if stop is None else 0
        if (not bad and missing <= 0) or read_blocks(folder / SUMS, start, stop)[: len(blocks)] == blocks:
            break  # else the record was rewound meanwhile
    kept = np.ones(len(points), bool)
    for low, high in bad:
        kept[low - first : high - first] = False
    if bad or missing > 0:
        _tell_damage(folder, bad, missing)
    wanted = slice(start - first, None if stop is None else stop - first)
    return points[wanted][kept[wanted]] if bad else points[wanted], len(points[wanted])


def _tell_damage(folder: Path, bad: list[tuple[int, int]], missing: int) -> None:
    news = [
        f"points {low:,} to {high - 1:,} are damaged: their checksum differs, {high - low:,} left out"
        for low, high in bad
    ]
    news += [f"{missing:,} points are missing at its end"] if missing > 0 else []
    for sentence in news:
        if (folder, sentence) not in _told:
            _told.add((folder, sentence))
            _log.warning("%s: %s", folder / POINTS, sentence)


def points_in(slots: np.ndarray, stamp: int) -> np.ndarray:
    """Return the points (n,) of `POINT` among the slots of a half of `metrics.live`."""
    is_point = slots["tag"] >> STAMP_SHIFT == stamp
    if not is_point.all():
        slots = slots[is_point]
    points = np.empty(len(slots), POINT)
    if sys.byteorder == "big":
        for field in ("time", "step", "value"):
            points[field] = slots[field]
        points["metric"] = (slots["tag"] & (2**STAMP_SHIFT - 1)) - 1
        return points
    # The same in words of 32 bits, which numpy moves in a fraction of the time: step, value, time, tag.
    words, found = slots.view("u4").reshape(-1, 6), points.view("u4").reshape(-1, 6)
    found[:, 2:] = words[:, :4]
    found[:, 1] = words[:, 4]
    found[:, 0] = (words[:, 5] & (2**STAMP_SHIFT - 1)) - 1
    return points


def read_live(folder: Path) -> list[tuple[int, np.ndarray]]:
    """Return the points of each half of `metrics.live`, and how many come before them, in order.

    Of a run that goes on it has to be read before `metrics.bin`, or points that are moved meanwhile are in neither.
    """
    try:
        with open_regular(folder / LIVE) as stream:
            data = np.fromfile(stream, np.uint8)
    except FileNotFoundError:
        return []
    if len(data) % (2 * SLOT.itemsize):
        return []
    halves = []
    for half in data.reshape(2, -1) if len(data) else ():
        base, stamp, _ = half[: SLOT.itemsize].view(np.uint64).tolist()
        if not stamp:  # nothing has been in it yet
            continue
        points = points_in(half[SLOT.itemsize :].view(SLOT), stamp)
        if len(points):
            halves.append((base, points))
    return sorted(halves, key=operator.itemgetter(0))


def has_latest_points(folder: Path) -> bool:
    """Tell whether there are points that the writer of a record has yet to move to `metrics.bin`."""
    return (folder / LIVE).exists() or (folder / CHILD_POINTS).exists()


def read_all_points(folder: Path) -> np.ndarray:
    """Return all points of a run as an array (n,) of `POINT`, those on their way to `metrics.bin` included.

    Damaged ones are left out; see `read_intact_points`.
    """
    live = read_live(folder)
    points, num_points = read_intact_points(folder)
    new = [there[max(0, num_points - base) :] for base, there in live]
    return np.concatenate([points, *new]) if new else points


def to_steps(steps: np.ndarray, as_float: bool) -> np.ndarray:
    """Return steps as they were logged: the 64 bits of `step` hold a float where the metric's entry says so."""
    return (steps.view("<f8") if as_float else steps).astype(np.float64 if as_float else np.int64, copy=False)


def read_metrics(folder: str | Path) -> dict[str, Series]:
    """Return every metric of a run by name, up to the last point that was logged.

    Of a run that goes on it is what has been logged by now.

        losses = read_metrics("my_runs/1")["train/loss"]
        losses.steps, losses.values  # two arrays (n,)

    Args:
        folder: The run's folder.
    """
    points = read_all_points(Path(folder))
    # Last, because the name of a point is written before it.
    return split_metrics(points, read_names(Path(folder)))


def read_metric(folder: str | Path, name: str) -> Series | None:
    """Return one metric of a run, of whose points no others are held for long; None if there is none of that name.

    Args:
        folder: The run's folder.
        name: The metric's.
    """
    folder = Path(folder)
    names = {number: entry for number, entry in read_names(folder).items() if entry[0] == name}
    if not names:
        return None
    for _ in range(_LOOKS):
        live = read_live(folder)
        before = _status(folder)
        size = before[1] // POINT.itemsize
        parts, num_points = [], 0
        for start in range(0, max(size, 1), _PIECE):
            # The last piece goes on to where the file ends by now.
            points, count = read_intact_points(folder, start, start + _PIECE if start + _PIECE < size else None)
            parts.append(_of_metrics(points, names))
            num_points += count
        if _status(folder)[0] == before[0]:
            break  # else the record was rewound meanwhile
    parts += [_of_metrics(there[max(0, num_points - base) :], names) for base, there in live]
    return split_metrics(parts[0] if len(parts) == 1 else np.concatenate(parts), names)[name]


def _status(folder: Path) -> tuple[int, int]:
    """Return which file the points are in, and its length."""
    try:
        found = (folder / POINTS).stat()
        return found.st_ino, found.st_size
    except FileNotFoundError:
        return 0, 0


def _of_metrics(points: np.ndarray, numbers: Mapping[int, object]) -> np.ndarray:
    """Return those points (n,) whose metric is among `numbers`."""
    metric = points["metric"]
    chosen = np.zeros(len(points), bool)
    for number in numbers:
        chosen |= metric == number
    return points if chosen.all() else _taken(points, np.flatnonzero(chosen))


def split_metrics(points: np.ndarray, names: dict[int, tuple[str, bool]]) -> dict[str, Series]:
    """Return every metric of `points` (n,) by name, also those of `names` that have none."""
    by_name: dict[str, list[int]] = {}
    for number, (name, _) in names.items():
        by_name.setdefault(name, []).append(number)
    parts = _parted(points["metric"])
    none = np.empty(0, np.intp)
    series = {}
    for name, numbers in by_name.items():
        rows = [parts.get(number, none) for number in numbers]
        if len(numbers) == 1:
            chosen = _taken(points, rows[0])
            joined = to_steps(np.ascontiguousarray(chosen["step"]), names[numbers[0]][1])
        else:
            chosen = _taken(points, np.sort(np.concatenate([np.arange(len(points))[each] for each in rows])))
            joined = _merged(chosen, {number: names[number][1] for number in numbers})
        series[name] = Series(joined, chosen["value"].astype(np.float64), chosen["time"] / TICKS_PER_S)
    return series


def _taken(points: np.ndarray, rows: np.ndarray | slice) -> np.ndarray:
    """Return some of the points, in words of 64 bits, which numpy takes in a tenth of the time of structures."""
    if isinstance(rows, slice):
        return points[rows]
    words = np.ascontiguousarray(points).view(np.uint64).reshape(-1, POINT.itemsize // 8)
    return words.take(rows, 0).view(POINT).reshape(-1)


def _parted(metric: np.ndarray) -> dict[int, np.ndarray | slice]:
    """Return where the points of each metric are, in order; a slice where they are all there is.

    Args:
        metric: (n,) the metric of each point.
    """
    metric = np.ascontiguousarray(metric)
    if not len(metric):
        return {}
    if (metric == metric[0]).all():
        return {int(metric[0]): slice(None)}
    # One stable sort parts all metrics at once, and keeps the order in each; of 16 bits it is a radix sort.
    order = np.argsort(metric.astype(np.uint16) if metric.max() < 2**16 else metric, kind="stable")
    found = metric[order]
    starts = np.flatnonzero(np.diff(found, prepend=found[0] + 1))
    return dict(zip(found[starts].tolist(), np.split(order, starts[1:]), strict=True))


def _merged(points: np.ndarray, float_steps: Mapping[int, bool]) -> np.ndarray:
    """Return the steps of a name that has an id for ints and one for floats, in the order of logging."""
    steps = np.empty(len(points), np.float64)
    for number, as_float in float_steps.items():
        of_number = points["metric"] == number
        steps[of_number] = to_steps(points["step"][of_number], as_float)
    return steps
