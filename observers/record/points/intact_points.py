"""Reading the points of a run from its folder, without those that the disk has damaged.

`metrics.sums` beside `metrics.bin` has an entry for each block of points that was appended, or for each part of a large
block: the number of its first point (u8), the number of points (u4), the CRC-32 of their bytes, and the CRC-32 of the
entry itself (u4 each, little-endian). An entry is appended after its block. Points without an entry are not verified:
the last ones of a process that was killed in between, and those in records of earlier versions.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import operator
import os
import struct
import zlib
from collections.abc import Collection, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sacristan.configs.packages import numpy as np
from sacristan.observers.record.append_file import pread
from sacristan.observers.record.files import open_regular, read_regular
from sacristan.observers.record.points import (
    CHUNK_POINTS,
    NO_SUMMARIES,
    POINT,
    POINT_BYTES,
    SLOT,
    SLOT_BYTES,
    TICKS_PER_S,
    Series,
    Summaries,
    add_to_summaries,
    needs_numpy,
    of_metrics,
    points_in,
    rows_by_metric,
    split_metrics,
)
from sacristan.observers.record.schema import CHILD_POINTS, LIVE, NAMES, POINTS, SUMS, MetricNames, read_names

_log = logging.getLogger(__name__)

_ENTRY = struct.Struct("<QII")
_OWN_SUM = struct.Struct("<I")
ENTRY_BYTES = _ENTRY.size + _OWN_SUM.size
# A reader of some points has to read every block that they are in, whole.
_MAX_POINTS = 2**16
# Points held at once while one metric of several is read: 24 MB.
_PIECE = 2**20
# How often points that seem damaged are read: they may have been replaced in the meantime.
_ATTEMPTS = 3
# A run of fewer points is read as a whole; of one with more, no places are kept.
_FEW_POINTS, _MAX_PLACED_POINTS = 2**16, 2**23
# Reading a point by itself takes as long as so many in a row.
_SPARSE = 256
# Finding the places of all points takes about as long as reading so many metrics.
_MANY_READS = 8
# The run that was read last, how often, and, if many of its metrics were, the places of all points by metric id.
_last_read: tuple[Hashable, int, dict[int, np.ndarray]] = (None, 0, {})
# Damage that was reported: the folder and the message.
_reported: set[tuple[Path, str]] = set()

# First point, number of points, checksum.
Block = tuple[int, int, int]


# ---------------------------------------------------------------------- checksums


def entries_of(data: bytes | memoryview, start: int) -> bytes:
    """Return the entries of `metrics.sums` for bytes of points that are appended after `start` others."""
    view, size = memoryview(data), _MAX_POINTS * POINT_BYTES
    entries = bytearray()
    for offset in range(0, len(view), size):
        part = view[offset : offset + size]
        entry = _ENTRY.pack(start + offset // POINT_BYTES, len(part) // POINT_BYTES, zlib.crc32(part))
        entries += entry + _OWN_SUM.pack(zlib.crc32(entry))
    return bytes(entries)


def blocks_in(entries: bytes | memoryview) -> list[Block]:
    """Return the blocks that entries describe; entries that are torn or damaged themselves are left out."""
    blocks = []
    for at in range(0, len(entries) - ENTRY_BYTES + 1, ENTRY_BYTES):
        if zlib.crc32(entries[at : at + _ENTRY.size]) == _OWN_SUM.unpack_from(entries, at + _ENTRY.size)[0]:
            blocks.append(_ENTRY.unpack_from(entries, at))
    return blocks


def read_blocks(path: Path, start: int = 0, stop: int | None = None) -> list[Block]:
    """Return the blocks that contain points `start` to `stop`, in order; of a long file only their entries are read."""
    try:
        with open_regular(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            if stop is None:
                stream.seek(0)
                return [block for block in blocks_in(stream.read(size)) if block[0] + block[1] > start]

            def first(number: int) -> int:
                stream.seek(number * ENTRY_BYTES)
                return int.from_bytes(stream.read(8), "little")

            numbers = range(size // ENTRY_BYTES)
            # The block before the first one that begins after `start` contains it.
            low = max(0, bisect.bisect_right(numbers, start, key=first) - 1)
            high = max(low, bisect.bisect_left(numbers, stop, key=first))
            stream.seek(low * ENTRY_BYTES)
            blocks = blocks_in(stream.read((high - low) * ENTRY_BYTES))
    except FileNotFoundError:
        return []
    return [block for block in blocks if block[0] < stop and block[0] + block[1] > start]


def damaged(blocks: list[Block], points: np.ndarray, start: int) -> list[tuple[int, int]]:
    """Return the first point and the end of each block whose points differ from what was written.

    `points` (n,) of `POINT` are those from number `start` on. A block is skipped unless it has all of its points there.
    """
    bad = []
    for first, count, checksum in blocks:
        low, high = first - start, first + count - start
        if low >= 0 and high <= len(points) and zlib.crc32(points[low:high].tobytes()) != checksum:
            bad.append((first, first + count))
    return bad


# ---------------------------------------------------------------------- points


def read_points(folder: Path, start: int = 0, stop: int | None = None) -> np.ndarray:
    """Read points `start` to `stop` (n,) of `POINT` from `metrics.bin` without verifying them."""
    try:
        with open_regular(folder / POINTS) as stream:
            count = os.fstat(stream.fileno()).st_size // POINT_BYTES
            stop = count if stop is None else min(stop, count)
            if stop <= start:
                return np.empty(0, POINT)
            return np.fromfile(stream, POINT, stop - start, offset=start * POINT_BYTES)
    except FileNotFoundError:
        return np.empty(0, POINT)


def last_time(folder: Path) -> float:
    """Return the time of the last point in `metrics.bin`, in seconds since the run started.

    The resolution is 10 ms. 0 without points, or if they cannot be read.
    """
    with contextlib.suppress(OSError):
        count = (folder / POINTS).stat().st_size // POINT_BYTES
        return float(read_points(folder, max(0, count - 1))["time"].max(initial=0)) / TICKS_PER_S
    return 0.0


def read_intact_points(folder: Path, start: int = 0, stop: int | None = None) -> tuple[np.ndarray, int]:
    """Read points from `metrics.bin`, and leave out blocks with a wrong checksum, with one warning for each.

    Returns the points (n,) of `POINT`, and their number including the damaged ones.
    """
    for _ in range(_ATTEMPTS):
        # The entries first, because each is written after its block.
        blocks = read_blocks(folder / SUMS, start, stop)
        first = min([start, *(block[0] for block in blocks)])
        ends = [block[0] + block[1] for block in blocks]
        points = read_points(folder, first, None if stop is None else max([stop, *ends]))
        bad = damaged(blocks, points, first)
        missing = max([0, *ends]) - first - len(points) if stop is None else 0
        if (not bad and missing <= 0) or read_blocks(folder / SUMS, start, stop)[: len(blocks)] == blocks:
            break  # otherwise the record was rewound in the meantime
    kept = np.ones(len(points), bool)
    for low, high in bad:
        kept[low - first : high - first] = False
    _report_damage(folder, bad, missing)
    wanted = slice(start - first, None if stop is None else stop - first)
    return points[wanted][kept[wanted]] if bad else points[wanted], len(points[wanted])


def read_few_points(folder: Path) -> bytes | None:
    """Return the packed points of a run that has ended, if they are few and intact; None if NumPy is to read them."""
    if has_latest_points(folder):
        return None
    try:
        size = (folder / POINTS).stat().st_size
        if size % POINT_BYTES or needs_numpy(size // POINT_BYTES):
            return None
        points = read_regular(folder / POINTS)
    except FileNotFoundError:
        return b""
    for first, count, checksum in read_blocks(folder / SUMS):
        if zlib.crc32(points[first * POINT_BYTES :][: count * POINT_BYTES]) != checksum:
            return None
    return points


def _damage(bad: list[tuple[int, int]], missing: int) -> list[str]:
    news = [
        f"points {low:,} to {high - 1:,} are damaged: their checksum differs, {high - low:,} left out"
        for low, high in bad
    ]
    return [*news, *([f"{missing:,} points are missing at its end"] if missing > 0 else [])]


def damage_in(folder: Path, known: Collection[str] = ()) -> list[str]:
    """Return what is missing or damaged in the points of a run that has ended, in sentences that name the file.

    `known` are names of metrics that the run must have.
    """
    blocks, points = read_blocks(folder / SUMS), read_points(folder)
    missing = max((first + count for first, count, _ in blocks), default=0) - len(points)
    sentences = [f"{POINTS}: {sentence}" for sentence in _damage(damaged(blocks, points, 0), missing)]
    names = read_names(folder)
    if nameless := len(points) and int((~np.isin(points["metric"], list(names))).sum()):
        sentences.append(f"{NAMES}: it lacks the names of {nameless:,} points")
    if lost := sorted({*known} - {name for name, _ in names.values()}):
        sentences.append(f"{NAMES}: it lacks {', '.join(lost[:3])}{', ...' if len(lost) > 3 else ''}")
    return sentences


def _report_damage(folder: Path, bad: list[tuple[int, int]], missing: int) -> None:
    for message in _damage(bad, missing):
        if (folder, message) not in _reported:
            _reported.add((folder, message))
            _log.warning("%s: %s", folder / POINTS, message)


def read_live(folder: Path) -> list[tuple[int, np.ndarray]]:
    """Read the points in both halves of `metrics.live`.

    While the run is active, read them before `metrics.bin`; otherwise points that are moved in between are in neither.

    Returns, in order, for each half that has points: the number of points before them, and (n,) of `POINT`.
    """
    try:
        with open_regular(folder / LIVE) as stream:
            data = np.fromfile(stream, np.uint8)
    except FileNotFoundError:
        return []
    if not len(data) or len(data) % (2 * SLOT_BYTES):
        return []
    halves = []
    for half in data.reshape(2, -1):
        base, stamp, _ = half[:SLOT_BYTES].view(np.uint64).tolist()
        points = points_in(half[SLOT_BYTES:].view(SLOT), stamp)
        if stamp and len(points):  # a stamp of 0: the half was never used
            halves.append((base, points))
    return sorted(halves, key=operator.itemgetter(0))


def has_latest_points(folder: Path) -> bool:
    """Tell whether a record has points that its writer has yet to move to `metrics.bin`.

    An active run and a killed one may both have some, in memory that outlives the process or from forked children.
    """
    return (folder / LIVE).exists() or (folder / CHILD_POINTS).exists()


def read_all_points(folder: Path) -> np.ndarray:
    """Read all intact points (n,) of a run in the order of logging, including those not yet in `metrics.bin`."""
    live = read_live(folder)
    points, num_points = read_intact_points(folder)
    new = [there[max(0, num_points - base) :] for base, there in live]
    return np.concatenate([points, *new]) if new else points


# ---------------------------------------------------------------------- metrics


def read_metrics(folder: str | Path) -> dict[str, Series]:
    """Return every metric of a run by name, up to the last point that was logged.

        losses = read_metrics("my_runs/1")["train/loss"]
        losses.steps, losses.values  # two arrays (n,)

    Args:
        folder: The run's folder. The run may still be active.
    """
    points = read_all_points(Path(folder))
    # The names last, because a name is written before its points.
    return split_metrics(points, read_names(Path(folder)))


def read_metric(
    folder: str | Path, name: str, names: MetricNames | None = None, version: Hashable | None = None
) -> Series | None:
    """Return one metric of a run, None if it has none of that name; points of others are read in pieces and dropped.

    Keep `names` to call this often. `version` changes with the points; None if they may change unnoticed.
    """
    folder = Path(folder)
    names = names or MetricNames(folder)
    ids = names.of(name)
    if not ids:
        return None
    if version is not None and (places := _places_of(folder, version, ids)) is not None:
        return split_metrics(_points_at(folder, places), ids)[name]
    for _ in range(_ATTEMPTS):
        live = read_live(folder)
        before = _status(folder)
        size = before[1] // POINT_BYTES
        parts, num_points = [], 0
        for start in range(0, max(size, 1), _PIECE):
            # The last piece ends where the file ends by now.
            points, count = read_intact_points(folder, start, start + _PIECE if start + _PIECE < size else None)
            parts.append(of_metrics(points, ids))
            num_points += count
        later = names.of(name)
        if _status(folder)[0] == before[0] and later == ids:
            break  # otherwise the record was rewound in the meantime, or the first step of the other kind was logged
        ids = later
    parts += [of_metrics(there[max(0, num_points - base) :], ids) for base, there in live]
    return split_metrics(parts[0] if len(parts) == 1 else np.concatenate(parts), ids)[name]


def _places_of(folder: Path, version: Hashable, ids: Iterable[int]) -> np.ndarray | None:
    """Return the numbers of the points of a metric, in order; None if reading all points is as quick.

    When many metrics of a run are read, the places of all are found at once, and kept until another run is read.
    """
    global _last_read
    (key, num_reads, places_by_metric), count = _last_read, _status(folder)[1] // POINT_BYTES
    if key != (folder, version):
        key, num_reads, places_by_metric = (folder, version), 0, {}
    if num_reads == _MANY_READS and _FEW_POINTS < count <= _MAX_PLACED_POINTS:
        places_by_metric = _all_places(folder)
    _last_read = key, num_reads + 1, places_by_metric
    if not places_by_metric:
        return None
    none = np.empty(0, np.uint32)
    places = np.sort(np.concatenate([none, *(places_by_metric.get(number, none) for number in ids)]))
    return places if len(places) * _SPARSE < count else None


def _all_places(folder: Path) -> dict[int, np.ndarray]:
    """Return the numbers of all points by metric id; nothing if a point is damaged."""
    points, count = read_intact_points(folder)
    if len(points) != count:
        return {}
    numbers = np.arange(count, dtype=np.uint32)
    return {metric: numbers[rows] for metric, rows in rows_by_metric(points["metric"]).items()}


def _points_at(folder: Path, places: np.ndarray) -> np.ndarray:
    """Read the points with some numbers, one by one."""
    size = POINT_BYTES
    with open_regular(folder / POINTS) as stream:
        handle = stream.fileno()
        data = b"".join(pread(handle, size, place * size) for place in places.tolist())
    return np.frombuffer(bytearray(data), POINT)


def _status(folder: Path) -> tuple[int, int]:
    """Return the inode and the length of the file of points."""
    try:
        status = (folder / POINTS).stat()
        return status.st_ino, status.st_size
    except FileNotFoundError:
        return 0, 0


def read_summaries(folder: Path) -> Summaries:
    """Return the summary of every metric, over all intact points in `metrics.bin`."""
    return _summaries_with(folder, [])


def latest_summary(folder: Path, written: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the summary of every metric, over all intact points of a killed run.

    None if `written`, the content of its `summary.json`, has them all.
    """
    live, num_points = read_live(folder), _status(folder)[1] // POINT_BYTES
    new = [there[max(0, num_points - base) :] for base, there in live]
    counts = [row.get("count") for row in written.values() if isinstance(row, Mapping)]
    if sum(count for count in counts if isinstance(count, int)) == num_points + sum(map(len, new)):
        return None
    return _summaries_with(folder, new).rows


def _summaries_with(folder: Path, new: Iterable[np.ndarray]) -> Summaries:
    """Return the summaries over all intact points in `metrics.bin`, and new ones (n,)."""
    summary, names, start = NO_SUMMARIES, read_names(folder), 0
    while True:
        points, count = read_intact_points(folder, start, start + CHUNK_POINTS)
        if not count:
            break
        summary = add_to_summaries(summary, points, names)
        start += count
    for points in new:
        summary = add_to_summaries(summary, points, names)
    return summary
