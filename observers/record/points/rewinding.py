"""Positions in a record, and rewinding the record to one.

A position says how much was logged up to a moment, as what JSON holds:

    {"metrics": {name: [count, last step]}, "media": {name: [count, last step]}}

Metrics of the machine, `system/...`, are no part of it: they tell of what has happened, which no rewinding undoes.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from observers.record.json_text import parse_json
from observers.record.points.points import TICKS_PER_S, read_intact_points, read_metrics, split_metrics
from observers.record.regular_file import read_regular
from observers.record.schema import MEDIA, NAMES, POINTS, VALUES, read_names

__all__ = [
    "Position",
    "held",
    "is_rewound",
    "missing_from",
    "next_step",
    "num_missing",
    "read_position",
    "rewound_files",
]

_log = logging.getLogger(__name__)

Position = Mapping[str, Mapping[str, list]]


def is_rewound(name: str) -> bool:
    """Tell whether points of the metric `name` are rewound with the training."""
    return not name.startswith("system/")


def read_position(folder: Path) -> dict[str, dict[str, list]]:
    """Return the position of all that is in a run's folder, without what is on its way to `metrics.bin`."""
    position: dict[str, dict[str, list]] = {}
    for kind, series in _steps(folder).items():
        last = {name: steps[-1] for name, steps in series.items() if len(steps)}
        position[kind] = {
            name: [len(series[name]), step.item() if isinstance(step, np.generic) else step]
            for name, step in last.items()
        }
    return position


def _steps(folder: Path) -> dict[str, dict[str, Sequence[Any]]]:
    """Return the steps of every series that is rewound, in the order of logging: `metrics` and `media` by name."""
    found = split_metrics(read_intact_points(folder)[0], read_names(folder))
    metrics: dict[str, Any] = {name: series.steps for name, series in found.items() if is_rewound(name)}
    for row, place in _odd_rows(folder):
        if is_rewound(row["name"]):
            metrics[row["name"]] = list(metrics.get(row["name"], ()))
            metrics[row["name"]].insert(place, row["step"])
    media: dict[str, list] = {}
    for row in _rows(folder / MEDIA):
        media.setdefault(row["name"], []).append(row["step"])
    return {"metrics": metrics, "media": media}


def held(folder: Path, position: Position) -> dict[str, dict[str, list]]:
    """Return the part of a position that a run's folder has.

    A series that lost points in its middle has later ones in their places, which are beyond the position: their steps
    tell.
    """
    there = _steps(folder)
    return {
        kind: {name: [_num_held(there[kind].get(name, ()), *entry), entry[1]] for name, entry in entries.items()}
        for kind, entries in position.items()
    }


def _num_held(steps: Sequence[Any], count: int, last: int | float | None) -> int:
    """Return how many of the first `count` of a series, whose last step is `last`, are among `steps`."""
    first = steps[:count]
    try:
        has_later = len(first) > 0 and last is not None and first[-1] > last
    except TypeError:  # a step that is no number
        return len(first)
    return sum(bool(step <= last) for step in first) if has_later else len(first)


def rewound_files(folder: Path, position: Position) -> Iterator[tuple[str, bytes]]:
    """Yield name and new content of each file that holds more than the position says.

    Each is to be replaced before the next is asked for: whoever is killed on the way has files that lead to the same
    end when this is done again. Of a name that has both, the numbers and what is none are told apart by their order.
    """
    position = held(folder, position)
    limits = {name: entry[0] for name, entry in position["metrics"].items()}
    odd = list(_odd_rows(folder))
    kept = [row for row, place in odd if not is_rewound(row["name"]) or place < limits.get(row["name"], 0)]
    if len(kept) < len(odd):
        yield VALUES, _lines(kept)
    num_odd = Counter(row["name"] for row in kept)
    names = read_names(folder)
    points, num_points = read_intact_points(folder)
    chosen = points[_within(points["metric"], names, {name: limits[name] - num_odd[name] for name in limits})]
    if len(chosen) < num_points:
        yield POINTS, chosen.tobytes()
    # A name without points would be shown as a metric of the run. A number that is used stays as it is.
    used = set(np.unique(chosen["metric"]).tolist())
    if not used >= names.keys():
        entries = [{"id": n, "name": name, **({"steps": "float"} if f else {})} for n, (name, f) in names.items()]
        yield NAMES, _lines([entry for entry in entries if entry["id"] in used])
    media = list(_rows(folder / MEDIA))
    left = {name: entry[0] for name, entry in position["media"].items()}
    kept = []
    for row in media:
        left[row["name"]] = left.get(row["name"], 0) - 1
        if left[row["name"]] >= 0:
            kept.append(row)
    if len(kept) < len(media):
        yield MEDIA, _lines(kept)


def missing_from(reached: Position, wanted: Position) -> Iterator[tuple[str, int, int]]:
    """Yield name, count and wanted count of what a position has less of than another one."""
    for kind, entries in wanted.items():
        for name, (count, _) in entries.items():
            there = reached[kind].get(name, [0])[0]
            if there < count:
                yield name, there, count


def num_missing(reached: Position, wanted: Position) -> int:
    """Return how many entries a position has less than another one."""
    return sum(count - there for _, there, count in missing_from(reached, wanted))


def next_step(position: Position) -> int:
    """Return the step that follows the greatest of a metric; 0 where there is none."""
    steps = [step for _, step in position["metrics"].values() if isinstance(step, int | float) and math.isfinite(step)]
    return math.floor(max(steps)) + 1 if steps else 0


def _within(metric: np.ndarray, names: Mapping[int, tuple[str, bool]], limits: Mapping[str, int]) -> np.ndarray:
    """Return which points (n,) are among the first of their metric, by its limit; its ids count together."""
    if not len(metric):
        return np.zeros(0, bool)
    by_name = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in names.values()))}
    # The last group is of points whose name is lost, which nobody can read; their ids may be anything.
    last = max(names, default=-1) + 1
    groups = np.full(last + 1, len(by_name))
    for number, (name, _) in names.items():
        groups[number] = by_name[name]
    bounds = [limits.get(name, 0) if is_rewound(name) else len(metric) for name in by_name]
    group = groups[np.minimum(metric, last)]
    # One stable sort counts within all metrics at once.
    order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[order], np.arange(len(by_name) + 1))
    kept = np.empty(len(metric), bool)
    kept[order] = np.arange(len(metric)) - first[group[order]] < np.array([*bounds, 0])[group[order]]
    return kept


def _odd_rows(folder: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the values that are no numbers, each with its place among all points of its metric."""
    rows = list(_rows(folder / VALUES))
    if not rows:
        return
    # Records that do not say how many numbers came before one are told by the time.
    series = {} if all("after" in row for row in rows) else read_metrics(folder)
    count: Counter[str] = Counter()
    for row in rows:
        name = row["name"]
        after = row.get("after")
        if after is None:
            after = int(np.searchsorted(series[name].times, row["time"] / TICKS_PER_S)) if name in series else 0
        yield row, after + count[name]
        count[name] += 1


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a file; one that a power cut has damaged is passed over."""
    try:
        lines = read_regular(path).split(b"\n")[:-1]
    except FileNotFoundError:
        return
    for line in lines:
        try:
            row = parse_json(line)
            row["name"], row["step"]
        except (ValueError, KeyError, TypeError):
            _log.warning("%s: a line of %d bytes is damaged, and left out", path, len(line))
        else:
            yield row


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
