"""Positions in a record, and rewinding the record to one.

A position says how much was logged up to some moment, as JSON:

    {"metrics": {name: [count, last step]}, "media": {name: [count, last step]}}

Metrics of the machine, `system/...`, are not part of it: they describe the past, which no rewinding undoes.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sacristan.configs.packages import numpy as np
from sacristan.observers.record.files import read_regular
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.points import TICKS_PER_S, Names, is_rewound, split_metrics
from sacristan.observers.record.points.intact_points import read_intact_points, read_metrics
from sacristan.observers.record.schema import MEDIA, NAMES, POINTS, VALUES, read_names

_log = logging.getLogger(__name__)

Position = Mapping[str, Mapping[str, list]]


def read_position(folder: Path) -> dict[str, dict[str, list]]:
    """Return the position of everything in a run's folder.

    Points in `metrics.live` do not count; see `PointFiles.recover`.
    """
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
    series = split_metrics(read_intact_points(folder)[0], read_names(folder))
    metrics: dict[str, Any] = {name: points.steps for name, points in series.items() if is_rewound(name)}
    for row, place in _other_values(folder):
        if is_rewound(row["name"]):
            metrics[row["name"]] = list(metrics.get(row["name"], ()))
            metrics[row["name"]].insert(place, row["step"])
    media: dict[str, list] = {}
    for row in _rows(folder / MEDIA):
        media.setdefault(row["name"], []).append(row["step"])
    return {"metrics": metrics, "media": media}


def held(folder: Path, position: Position) -> dict[str, dict[str, list]]:
    """Return the part of a position that a run's folder still has, with lower counts where entries were lost.

    Later entries do not stand in for lost ones: they are recognised by their steps.
    """
    there = _steps(folder)
    return {
        kind: {name: [_num_held(there[kind].get(name, ()), *entry), entry[1]] for name, entry in entries.items()}
        for kind, entries in position.items()
    }


def _num_held(steps: Sequence[Any], count: int, last: int | float | None) -> int:
    """Return how many of the first `count` entries of a series, whose last step is `last`, are among `steps`."""
    first = steps[:count]
    try:
        has_later = len(first) > 0 and last is not None and first[-1] > last
    except TypeError:  # a step that is not a number
        return len(first)
    return sum(bool(step <= last) for step in first) if has_later else len(first)


def rewound_files(folder: Path, position: Position) -> Iterator[tuple[str, bytes]]:
    """Yield the name and new content of each file that holds more than a position.

    Replace each file before asking for the next one. If the process is killed in between, doing all of it again leads
    to the same result.
    """
    position = held(folder, position)
    limits = {name: entry[0] for name, entry in position["metrics"].items()}
    # Numbers and other values of one metric are counted together, in the order of logging.
    others = list(_other_values(folder))
    kept = [row for row, place in others if not is_rewound(row["name"]) or place < limits.get(row["name"], 0)]
    if len(kept) < len(others):
        yield VALUES, _lines(kept)
    num_others = Counter(row["name"] for row in kept)
    names = read_names(folder)
    points, num_points = read_intact_points(folder)
    numbers = {name: limit - num_others[name] for name, limit in limits.items()}
    chosen = points[_within(points["metric"], names, numbers)]
    if len(chosen) < num_points:
        yield POINTS, chosen.tobytes()
    # A name without points would be shown as a metric of the run. The ids of the others stay the same.
    used = set(np.unique(chosen["metric"]).tolist())
    if not used >= names.keys():
        entries = [{"id": n, "name": name, **({"steps": "float"} if f else {})} for n, (name, f) in names.items()]
        yield NAMES, _lines([entry for entry in entries if entry["id"] in used])
    yield from _rewound_media(folder, position)


def _rewound_media(folder: Path, position: Position) -> Iterator[tuple[str, bytes]]:
    media, kept = list(_rows(folder / MEDIA)), []
    left = {name: entry[0] for name, entry in position["media"].items()}
    for row in media:
        left[row["name"]] = left.get(row["name"], 0) - 1
        if left[row["name"]] >= 0:
            kept.append(row)
    if len(kept) < len(media):
        yield MEDIA, _lines(kept)


def missing_from(reached: Position, wanted: Position) -> Iterator[tuple[str, int, int]]:
    """Yield name, count reached and count wanted of every series of which `reached` has less."""
    for kind, entries in wanted.items():
        for name, (count, _) in entries.items():
            there = reached[kind].get(name, [0])[0]
            if there < count:
                yield name, there, count


def num_missing(reached: Position, wanted: Position) -> int:
    """Return how many points and media one position has less than another; see `missing_from`.

    A surplus in one series does not make up for another.
    """
    return sum(count - there for _, there, count in missing_from(reached, wanted))


def next_step(position: Position) -> int:
    """Return the step that a training without a step of its own continues from.

    It is one above the greatest step of any metric, as an integer; 0 if there is none.
    """
    steps = [step for _, step in position["metrics"].values() if isinstance(step, int | float) and math.isfinite(step)]
    return math.floor(max(steps)) + 1 if steps else 0


def _within(metric: np.ndarray, names: Names, limits: Mapping[str, int]) -> np.ndarray:
    """Return which points (n,) are among the first ones of their metric, up to its limit."""
    if not len(metric):
        return np.zeros(0, bool)
    # A metric with steps of both kinds has two ids, which count together.
    by_name = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in names.values()))}
    # The last group is for points without a name, which no reader shows; their ids may be anything.
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


def _other_values(folder: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the logged values that are not numbers, each with its place among all points of its metric."""
    rows = list(_rows(folder / VALUES))
    if not rows:
        return
    # Early records do not say how many numbers came before such a value; there, its time decides.
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
    """Yield the whole lines of a file, except those that a power cut has damaged."""
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
