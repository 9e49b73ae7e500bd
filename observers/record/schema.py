"""The record of a run on disk: its files, and how they are read. Writers and readers both go by this module.

A run's folder, beside what Sacred's FileStorageObserver would put there:

    run.json             experiment, command, host, times, status, result, artifacts, resources; replaced as a whole
    config.json          the config; replaced as a whole
    info.json            the run's info; replaced as a whole
    cout.txt             captured output; append-only
    metrics.bin          points, 24 bytes each; append-only
    metrics.sums         checksums of the points, see `observers.record.checksums`; append-only
    metrics.live         the latest points of a run that goes on or was killed, see `observers.record.live_points`
    metrics.children.jsonl  points of forked children that the run has yet to take over; only while there are any
    metrics.names.jsonl  the name of each metric id; append-only
    values.jsonl         logged values that are no numbers, each `after` so many numbers of its metric; append-only
    summary.json         first, last, min, max, mean, count of each metric; replaced as a whole
    media.jsonl          an entry for each image, figure, histogram, text and table that was logged; append-only
    media/               their contents, each once: SHA-256 and suffix are the name; written before the entry
    provenance.json      git, packages, libraries, machine and determinism flags of the first session; replaced as a
                         whole
    lease.json           who writes this run, and when last; replaced as a whole
    lease.lock           empty; the process that writes this run holds a lock on it
    metrics.json         Sacred's form of the metrics, written when the run ends
    destination.json     the database that the run is delivered to, without credentials
    delivered.json       how much of the run was in that database, once all of it was
    earlier/             artifacts whose name was given to another file later, for that database; see `run.json`
    notes.json           tags, a note and verdicts on reproductions, which come later; replaced as a whole

`run.json` names the folder itself as `folder`, and the one that the run was started in as `cwd`. Of a run that is
recorded in several folders, the others name the one that has the states of its training as `states_folder`. That of a
resumed run has `sessions` (see `observers.record.resuming`), and `revision`, which counts how often the record was
rewound (see `observers.record.rewinding`); while that is done it has `rewinding`, and files that are append-only
otherwise are replaced as a whole.

`metrics.live` has two halves. Each begins with the number of points in `metrics.bin` that come before its first one,
and a stamp (u8 each, and 8 unused bytes); slots follow (see `SLOT`). A slot is a point if its tag has the half's stamp,
which is never 0, in the upper 8 bits; the lower ones are the metric's id plus one. A reader who finds more points in
`metrics.bin` than come before a half passes over as many of its points, so that none counts twice.

A torn tail, which a killed process can leave behind an append-only file, is what follows the last whole record; readers
pass over it, and the next writer cuts it off.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from observers.errors import RecordError
from observers.record.checksums import damaged, read_blocks

__all__ = [
    "POINT",
    "SLOT",
    "TICKS_PER_S",
    "MediaRecord",
    "Series",
    "has_latest_points",
    "media_path",
    "points_in",
    "read_all_points",
    "read_intact_points",
    "read_json",
    "read_json_lines",
    "read_live",
    "read_media",
    "read_metrics",
    "read_names",
    "read_points",
    "read_table",
    "split_metrics",
    "to_steps",
]

_log = logging.getLogger(__name__)

# metric: number in metrics.names.jsonl; time: ticks since the run started; step: see `to_steps`.
POINT = np.dtype([("metric", "<u4"), ("time", "<u4"), ("step", "<i8"), ("value", "<f8")])

# The same of a point in `metrics.live`, in the machine's byte order; its tag is written last.
SLOT = np.dtype([("step", "=i8"), ("value", "=f8"), ("time", "=u4"), ("tag", "=u4")])
STAMP_SHIFT = 24

# How often points that seem to be damaged are looked at: they may have been replaced meanwhile.
_LOOKS = 3
# Damage that was told: the folder and the sentence.
_told: set[tuple[Path, str]] = set()

# A tick is 10 ms, so that 32 bits of them last for 497 days.
TICKS_PER_S = 100

FORMAT = "sacristan-1"
# More points than this have no `metrics.json`, which grows with them.
MAX_SACRED_POINTS = 200_000

RUN, CONFIG, INFO, OUTPUT = "run.json", "config.json", "info.json", "cout.txt"
CHILD_POINTS = "metrics.children.jsonl"
POINTS, LIVE, NAMES, VALUES = "metrics.bin", "metrics.live", "metrics.names.jsonl", "values.jsonl"
SUMS = "metrics.sums"
SUMMARY, LEASE, SACRED_METRICS = "summary.json", "lease.json", "metrics.json"
NOTES, PROVENANCE, LOCK = "notes.json", "provenance.json", "lease.lock"
DESTINATION, DELIVERED, EARLIER_FOLDER = "destination.json", "delivered.json", "earlier"
MEDIA, MEDIA_FOLDER = "media.jsonl", "media"
# What a run's folder has of itself, and no artifact may be called.
OWN_FILES = frozenset((RUN, CONFIG, INFO, OUTPUT, POINTS, NAMES, VALUES, SUMMARY, MEDIA, LEASE, NOTES, PROVENANCE))
OWN_FILES |= {SACRED_METRICS, CHILD_POINTS, LIVE, LOCK, SUMS, DESTINATION, DELIVERED}
_MEDIA_FILE = re.compile(rf"({MEDIA_FOLDER}/)?[0-9a-f]{{64}}\.[a-z0-9]{{1,8}}")


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


@dataclasses.dataclass(frozen=True)
class MediaRecord:
    """An image, figure, histogram, text or table as it was logged.

    Attributes:
        name: Name of the series.
        kind: image, figure, histogram, text or table.
        step: Its step.
        time: Seconds since the run started.
        path: The file; `read_table` reads that of a table, any JSON reader that of a histogram.
        sha256: SHA-256 of the file.
        content_type: Its MIME type.
        meta: Width and height, caption, number of rows, as the kind has it.
    """

    name: str
    kind: str
    step: int | float
    time: float
    path: Path
    sha256: str
    content_type: str
    meta: dict[str, Any]


def read_json(path: Path) -> Any | None:
    """Return what a JSON file of a record holds; None if there is no file.

    Raises:
        ValueError: If it is no JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def read_json_lines(path: Path) -> Iterator[Any]:
    """Yield the records of an append-only JSON-lines file, passing over a torn tail; none if there is no file."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines[:-1]:
        yield json.loads(line)


def read_names(folder: Path) -> dict[int, tuple[str, bool]]:
    """Return name, and whether steps are floats, of each metric id."""
    return {row["id"]: (row["name"], row.get("steps") == "float") for row in read_json_lines(folder / NAMES)}


def read_points(folder: Path, start: int = 0, stop: int | None = None) -> np.ndarray:
    """Return points `start` to `stop` as an array (n,) of `POINT`; empty if there are none."""
    path = folder / POINTS
    try:
        count = path.stat().st_size // POINT.itemsize
    except FileNotFoundError:
        return np.empty(0, POINT)
    stop = count if stop is None else min(stop, count)
    if stop <= start:
        return np.empty(0, POINT)
    return np.fromfile(path, POINT, stop - start, offset=start * POINT.itemsize)


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
    points["metric"] = (slots["tag"] & (2**STAMP_SHIFT - 1)) - 1
    for field in ("time", "step", "value"):
        points[field] = slots[field]
    return points


def read_live(folder: Path) -> list[tuple[int, np.ndarray]]:
    """Return the points of each half of `metrics.live`, and how many come before them, in order.

    Of a run that goes on it has to be read before `metrics.bin`, or points that are moved meanwhile are in neither.
    """
    try:
        data = np.fromfile(folder / LIVE, np.uint8)
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
    return steps.view("<f8").astype(np.float64) if as_float else steps.astype(np.int64)


def read_metrics(folder: Path) -> dict[str, Series]:
    """Return every metric of a run by name, up to the last point that was logged.

    Of a run that goes on it is what has been logged by now.

        losses = read_metrics(Path("my_runs/1"))["train/loss"]
        losses.steps, losses.values  # two arrays (n,)

    Args:
        folder: The run's folder.
    """
    points = read_all_points(folder)
    # Last, because the name of a point is written before it.
    return split_metrics(points, read_names(folder))


def split_metrics(points: np.ndarray, names: dict[int, tuple[str, bool]]) -> dict[str, Series]:
    """Return every metric of `points` (n,) by name, also those of `names` that have none."""
    by_name: dict[str, list[int]] = {}
    for number, (name, _) in names.items():
        by_name.setdefault(name, []).append(number)
    # One stable sort parts all metrics at once, and keeps the order in each.
    order = np.argsort(points["metric"], kind="stable")
    bounds = np.searchsorted(points["metric"][order], np.arange(max(names, default=-1) + 2))
    series = {}
    for name, numbers in by_name.items():
        rows = [order[bounds[number] : bounds[number + 1]] for number in numbers]
        chosen = points[rows[0] if len(rows) == 1 else np.sort(np.concatenate(rows))]
        steps = [to_steps(np.ascontiguousarray(chosen["step"][chosen["metric"] == n]), names[n][1]) for n in numbers]
        joined = steps[0] if len(numbers) == 1 else _merge(chosen["metric"], numbers, steps)
        series[name] = Series(joined, chosen["value"].astype(np.float64), chosen["time"] / TICKS_PER_S)
    return series


def _merge(metric: np.ndarray, numbers: list[int], steps: list[np.ndarray]) -> np.ndarray:
    """Put the steps of one name that has an id for ints and one for floats back into the order of logging."""
    merged = np.empty(len(metric), np.float64)
    for number, values in zip(numbers, steps, strict=True):
        merged[metric == number] = values
    return merged


def media_path(folder: Path, file: Any) -> Path:
    """Return where in a run's folder the content `file` of an entry, or of a table's cell, lies.

    Raises:
        RecordError: If that is no name of a content, such as one that leads out of the folder.
    """
    if not isinstance(file, str) or not _MEDIA_FILE.fullmatch(file):
        raise RecordError(
            f"{folder / MEDIA}: got the file name {file!r}, expected {MEDIA_FOLDER}/SHA256.SUFFIX; it was not written "
            "by this program, remove the entry"
        )
    return folder / MEDIA_FOLDER / file.rpartition("/")[2]


def read_media(folder: Path) -> list[MediaRecord]:
    """Return what a run logged beside numbers, in the order of logging; nothing of it is opened.

    Raises:
        RecordError: If a name leads out of the folder.
    """
    return [
        MediaRecord(
            **{key: row[key] for key in ("name", "kind", "step", "time", "sha256", "content_type", "meta")},
            path=media_path(folder, row["file"]),
        )
        for row in read_json_lines(folder / MEDIA)
    ]


def read_table(path: Path) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of a table's file; cells are numbers, texts, None, or the `Path` of an image.

    Raises:
        RecordError: If an image's name leads out of the folder.
    """
    table = json.loads(path.read_bytes())

    def cell(value: Any) -> Any:
        if isinstance(value, dict):
            return float(value["$number"]) if "$number" in value else media_path(path.parent.parent, value["$image"])
        return value

    return table["columns"], [[cell(value) for value in row] for row in table["rows"]]
