"""Delivery of a run's points and media to MongoDB, in batches; resending one changes nothing.

Points are appended to a metric's document on the condition that it has exactly the points before them. Points beyond
`POINTS_PER_DOCUMENT` go into chunks of fixed bounds, each replaced by a longer version: `data` is a sequence of
`sacristan.observers.record.points.POINT` records, `index` numbers the chunks of a metric, and `float_steps` says
that its steps are floats.

Contents of media are stored once. A document of `media` has the entry of `sacristan.observers.record.schema`, with
`run_id` and `uid`. `file_id` is the content in GridFS, and `images` of a table has `file` and `file_id` of each image
in it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import bson
import numpy as np
from pymongo import ReplaceOne
from pymongo.errors import DuplicateKeyError

from sacristan.observers.errors import RecordError
from sacristan.observers.mongo.contents import Shipment
from sacristan.observers.mongo.documents import Packer, files_in, object_id
from sacristan.observers.mongo.layout import Collections, Document, make_media_indexes
from sacristan.observers.record.files import open_regular, read_regular
from sacristan.observers.record.json_text import parse_json, storable_text
from sacristan.observers.record.media_files import media_path
from sacristan.observers.record.points import POINT, POINT_BYTES, TICKS_PER_S, by_name, to_steps
from sacristan.observers.record.points.intact_points import read_intact_points
from sacristan.observers.record.schema import MEDIA, POINTS, MetricNames, read_names

_log = logging.getLogger(__name__)

POINTS_PER_DOCUMENT = 20_000
POINTS_PER_CHUNK = 4_096
_BATCH_POINTS = 100_000
_COUNTED_POINTS = 2**20
_BATCH_DOCUMENTS = 10_000


class Behind(Exception):  # noqa: N818 - it is expected, not an error
    """The database has fewer points than expected."""


class PointDelivery:
    """Sends the points of one run's folder; `num_sent` are delivered or damaged, `counts` those by metric."""

    def __init__(self, shipment: Shipment, start: datetime) -> None:
        self._run = shipment
        self._start = start
        self._names = MetricNames(shipment.folder)
        self.restart()

    def restart(self) -> None:
        """Forget what was sent: another process delivers the same run, or something was removed."""
        self.num_sent = 0
        self.counts: dict[str, int] = {}
        self._tails: dict[str, np.ndarray] = {}

    def adopt(self) -> None:
        """Assign the run's points in the database to its document, which was inserted again."""
        counts = count_points(self._run.folder)
        ids = [object_id(self._run.uid, name) for name in counts]
        chunk_ids = [key for _, key, _ in _chunks(self._run.uid, counts)]
        for collection, keys in (
            (self._run.collections.metrics, ids),
            (self._run.collections.chunks, chunk_ids),
        ):
            for batch in _batches(keys):
                collection.update_many({"_id": {"$in": batch}}, {"$set": {"run_id": self._run.run_id}})

    def send(self) -> bool:
        """Send a batch; return whether there may be more. If the database has fewer than expected, raise Behind."""
        points, num_read = read_intact_points(self._run.folder, self.num_sent, self.num_sent + _BATCH_POINTS)
        if not num_read:
            return False
        self._names.folder = self._run.folder
        by_id, numbers = self._names.by_id, np.unique(points["metric"]).tolist()
        if any(number not in by_id for number in numbers):
            return False  # the name is not on the disk yet
        names = {number: by_id[number] for number in numbers}
        floats = np.zeros(max(numbers, default=-1) + 1, bool)
        floats[[number for number, (_, as_float) in names.items() if as_float]] = True
        counts, tails = dict(self.counts), dict(self._tails)
        for name, new in by_name(points, names).items():
            if not len(new):
                continue
            start = self.counts.get(name, 0)
            inside = max(0, POINTS_PER_DOCUMENT - start)
            if inside:
                self._push(name, start, new[:inside], floats)
            if len(new) > inside:
                tails[name] = self._send_chunks(name, max(start - POINTS_PER_DOCUMENT, 0), new[inside:], floats)
            counts[name] = start + len(new)
        # Only now, so that an interrupted batch is sent again unchanged.
        self.counts, self._tails = counts, tails
        self.num_sent += num_read
        return True

    def _push(self, name: str, start: int, points: np.ndarray, floats: np.ndarray) -> None:
        """Append points to the metric's document, after its first `start` points, unless they are there."""
        metric_id = object_id(self._run.uid, name)
        new = {"steps": _steps(points, floats), "values": points["value"].tolist(), "timestamps": self._times(points)}
        if start == 0:
            document: Document = {
                "_id": metric_id,
                "run_id": self._run.run_id,
                "name": storable_text(name),
                **new,
                "count": len(points),
            }
            with contextlib.suppress(DuplicateKeyError):
                self._run.collections.metrics.insert_one(document)
                return
        stored = self._run.collections.metrics.find_one({"_id": metric_id}, {"count": 1})
        if stored is None or stored["count"] < start:
            raise Behind
        there, end = stored["count"], start + len(points)
        if there >= end:
            return
        push = {key: {"$each": values[there - start :]} for key, values in new.items()}
        change = {"$push": push, "$set": {"count": end}}
        if not self._run.collections.metrics.update_one({"_id": metric_id, "count": there}, change).matched_count:
            raise Behind

    def _times(self, points: np.ndarray) -> list[datetime]:
        return [self._start + timedelta(seconds=tick / TICKS_PER_S) for tick in points["time"].tolist()]

    def _send_chunks(self, name: str, start: int, points: np.ndarray, floats: np.ndarray) -> np.ndarray:
        """Write the chunks of points that follow `start` others beyond the cap, and return those of an open chunk."""
        uid = self._run.uid
        open_points = self._tails.get(name, np.empty(0, POINT))
        index = (start - len(open_points)) // POINTS_PER_CHUNK
        waiting = np.concatenate([open_points, points])
        while len(waiting):
            chunk, waiting = waiting[:POINTS_PER_CHUNK], waiting[POINTS_PER_CHUNK:]
            fields = {"run_id": self._run.run_id, "uid": uid, "name": storable_text(name), "index": index}
            fields |= {"count": len(chunk), **_chunk_data(chunk, floats)}
            key = {"_id": object_id(uid, name, index)}
            with contextlib.suppress(DuplicateKeyError):  # as long or longer already
                self._run.collections.chunks.update_one(
                    {**key, "count": {"$lt": len(chunk)}}, {"$set": fields}, upsert=True
                )
            index += 1
        return chunk if len(chunk) < POINTS_PER_CHUNK else np.empty(0, POINT)


def _chunk_data(points: np.ndarray, floats: np.ndarray) -> dict[str, Any]:
    """Return the points of a chunk as bytes; if one step is a float, all are stored as floats."""
    as_float = floats[points["metric"]]
    if not as_float.any():
        return {"data": points.tobytes()}
    stored = points.copy()
    stored["step"][~as_float] = points["step"][~as_float].astype("<f8").view("<i8")
    return {"data": stored.tobytes(), "float_steps": True}


def _steps(points: np.ndarray, floats: np.ndarray) -> list:
    """Return steps as ints, or as floats if they were logged as floats."""
    steps = points["step"].tolist()
    as_float = floats[points["metric"]]
    if not as_float.any():
        return steps
    decoded = to_steps(np.ascontiguousarray(points["step"]), True).tolist()
    return [b if f else a for a, b, f in zip(steps, decoded, as_float.tolist(), strict=True)]


def len_points(folder: Path) -> int:
    """Return the number of points that can be delivered: not those in `metrics.live`, but damaged ones."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / POINTS).stat().st_size // POINT_BYTES
    return 0


def count_points(folder: Path) -> dict[str, int]:
    """Count the points of each metric in a run's folder that are neither damaged nor without a name."""
    by_number: dict[int, int] = {}
    start = 0
    while (batch := read_intact_points(folder, start, start + _COUNTED_POINTS))[1]:
        points, num_read = batch
        start += num_read
        numbers, counts = np.unique(points["metric"], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            by_number[number] = by_number.get(number, 0) + count
    by_name: dict[str, int] = {}
    for number, (name, _) in read_names(folder).items():
        if number in by_number:
            by_name[name] = by_name.get(name, 0) + by_number[number]
    return by_name


def find_lost_metrics(
    collections: Collections, run_id: Any, uid: str, counts: Mapping[str, int]
) -> tuple[list[str], set[Any]]:
    """Return the metrics with fewer points in the database than in `counts`, and the ids of documents cut short."""
    lost, cut = set(), set()
    lengths = [{"$size": {"$ifNull": [f"${name}", []]}} for name in ("steps", "values", "timestamps")]
    expected = {object_id(uid, name): name for name in counts}
    for batch in _batches(expected):
        rows = collections.metrics.aggregate(
            [
                {"$match": {"_id": {"$in": batch}, "run_id": run_id}},
                {"$project": {"count": 1, "length": {"$min": lengths}}},
            ]
        )
        there = {row["_id"]: row for row in rows}
        cut |= {key for key, row in there.items() if row["length"] < row["count"]}
        for key in batch:
            length = there[key]["length"] if key in there else 0
            if length < min(counts[expected[key]], POINTS_PER_DOCUMENT):
                lost.add(expected[key])
    for batch in _batches(list(_chunks(uid, counts))):
        ids = {"_id": {"$in": [key for _, key, _ in batch]}, "run_id": run_id}
        sizes = {row["_id"]: row["count"] for row in collections.chunks.find(ids, {"count": 1})}
        lost |= {name for name, key, size in batch if sizes.get(key, 0) < size}
    return sorted(lost), cut


def _chunks(uid: str, counts: Mapping[str, int]) -> Iterator[tuple[str, Any, int]]:
    """Yield metric, id and length of each chunk that the points need."""
    for name, count in counts.items():
        for index, start in enumerate(range(POINTS_PER_DOCUMENT, count, POINTS_PER_CHUNK)):
            yield name, object_id(uid, name, index), min(POINTS_PER_CHUNK, count - start)


def _batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, _BATCH_DOCUMENTS)):
        yield batch


_BATCH_ENTRIES = 100
# The owner of large entries, which belong to no run, like contents.
_OWNER = "media"


class MediaDelivery:
    """Sends the media of one run's folder; `num_sent` entries are delivered."""

    def __init__(self, shipment: Shipment) -> None:
        self._run = shipment
        self.restart()

    def restart(self) -> None:
        """Forget what was sent, because something was removed from the database."""
        self.num_sent = 0
        self._offset = 0

    def send(self) -> None:
        lines = self._new_lines()
        if lines and not self.num_sent:
            make_media_indexes(self._run.collections)
        for start in range(0, len(lines), _BATCH_ENTRIES):
            batch = lines[start : start + _BATCH_ENTRIES]
            documents = [self._document(line, self.num_sent + index) for index, line in enumerate(batch)]
            changes = [ReplaceOne({"_id": document["_id"]}, document, upsert=True) for document in documents]
            self._run.collections.media.bulk_write(changes, ordered=False)
            # Only now, so that an interrupted batch is sent again unchanged.
            self.num_sent += len(batch)
            self._offset += sum(len(line) + 1 for line in batch)

    def num_missing(self) -> int:
        return len(self._new_lines())

    def _new_lines(self) -> list[bytes]:
        with contextlib.suppress(FileNotFoundError), open_regular(self._run.folder / MEDIA) as stream:
            stream.seek(self._offset)
            return stream.read().split(b"\n")[:-1]
        return []

    def _document(self, line: bytes, number: int) -> dict[str, Any]:
        entry = parse_json(line)
        images = entry.pop("images", [])
        packer = Packer(_OWNER)
        packed = packer.entry(entry)
        for file_id in files_in(packed):
            self._run.contents.put(file_id, packer.files[file_id], "entry.json", _OWNER)
        document = {
            "run_id": self._run.run_id,
            "uid": self._run.uid,
            "number": number,
            **packed,
            "file_id": self._store(entry["file"]),
        }
        if images:
            document["images"] = [{"file": name, "file_id": self._store(name)} for name in images]
        return {"_id": object_id(self._run.uid, "media", number), **document}

    def _store(self, file: str) -> bson.ObjectId | None:
        """Store a content, and return its id; if it is missing or damaged, warn, and return None."""
        file_id, reason = None, "is not there"
        try:
            path = media_path(self._run.folder, file)
            file_id = self._run.contents.store(path, path.name)
        except RecordError:
            reason = "is no name of a content"
        if file_id == object_id("sha256", Path(file).stem):
            return file_id
        reason = "is not what was written" if file_id is not None else reason
        _log.warning("%s: %r %s; its entry is delivered without it", self._run.folder, file, reason)
        return None


def len_media(folder: Path) -> int:
    """Return the number of media in a run's folder, without a torn last line; 0 without a file of entries."""
    with contextlib.suppress(FileNotFoundError):
        return read_regular(folder / MEDIA).count(b"\n")
    return 0
