"""Fields and points of many runs of a database, in one query for all of them.

numpy decodes points in a hundredth of the time and memory of Python objects. A BSON array is a document with the keys
"0", "1" and so on; elements of one type whose keys have the same number of digits have the same length:
https://bsonspec.org/spec.html
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import bson
import numpy as np

from sacristan.observers.mongo.documents import FILE, exact_time
from sacristan.observers.record.points import POINT, TICKS_PER_S, Series, to_steps
from sacristan.runs.errors import StoreError
from sacristan.runs.query import mapping_of
from sacristan.runs.stores import PARTS, R, StoredRun
from sacristan.runs.stores.mongo.database import Document
from sacristan.runs.stores.mongo.queries import as_recorded, from_bson, has_changed_keys, projection_of, row_in
from sacristan.runs.stores.mongo.records import SERIES_FIELDS, MongoRecords, as_named, fields_of_part, start_of
from sacristan.runs.stores.run import curves_in
from sacristan.runs.stores.series import series_of

_ARRAY = 4
_DTYPES = {1: "<f8", 9: "<M8[ms]", 16: "<i4", 18: "<i8"}
# Lengths of values in bytes, by type; values of the second table begin with their length, to which the number is added.
_LENGTHS = {1: 8, 6: 0, 7: 12, 8: 1, 9: 8, 10: 0, 16: 4, 17: 8, 18: 8, 19: 16, 127: 0, 255: 0}
_EXTRA_LENGTHS = {2: 4, 3: 0, _ARRAY: 0, 5: 5, 13: 4, 14: 4, 15: 0}


def decode_arrays(raw: bytes | memoryview) -> dict[str, Any]:
    """Decode a document as `bson.decode` does, but arrays of dates or of one type of number as numpy arrays."""
    raw, rest, arrays, position = bytes(raw), [], {}, 4
    while position < len(raw) - 1:
        kind, behind_name = raw[position], raw.index(0, position + 1) + 1
        if kind in _LENGTHS:
            length = _LENGTHS[kind]
        elif kind in _EXTRA_LENGTHS:
            length = int.from_bytes(raw[behind_name : behind_name + 4], "little") + _EXTRA_LENGTHS[kind]
        else:
            return dict(bson.decode(raw))
        end = behind_name + length
        numbers = _numbers(raw[behind_name:end]) if kind == _ARRAY else None
        if numbers is None:
            rest.append(raw[position:end])
        else:
            arrays[raw[position + 1 : behind_name - 1].decode()] = numbers
        position = end
    data = b"".join(rest)
    return {**bson.decode((len(data) + 5).to_bytes(4, "little") + data + b"\0"), **arrays}


def _numbers(array: bytes) -> np.ndarray | None:
    """Return the numbers of an array of one type; None for an empty array and for any other."""
    kind, start, end = array[4], 4, len(array) - 1
    if kind not in _DTYPES:
        return None
    parts, count = [], 0
    for num_digits in range(1, 10):
        element = np.dtype([("kind", "u1"), ("key", "u1", num_digits), ("end", "u1"), ("value", _DTYPES[kind])])
        there = min((end - start) // element.itemsize, 10**num_digits - count)
        block = np.frombuffer(array, element, there, start)
        if not there or (block["kind"] != kind).any():
            return None
        parts.append(block["value"])
        start, count = start + block.nbytes, count + there
        if start == end:
            is_whole = block["key"][-1].tobytes() == b"%d" % (count - 1)
            return np.concatenate(parts) if is_whole else None
    return None


def joined(series: Series, chunks: Iterable[Mapping[str, Any]]) -> Series:
    """Append to a series the points of documents of `metrics_chunks`, in order, with `data` and `float_steps`."""
    steps, values, times = [series.steps], [series.values], [series.times]
    for chunk in chunks:
        points = np.frombuffer(chunk["data"], POINT)
        steps.append(to_steps(np.ascontiguousarray(points["step"]), bool(chunk.get("float_steps"))))
        # A copy does not keep the chunk in memory.
        values.append(points["value"].copy())
        times.append(points["time"] / TICKS_PER_S)
    return Series(*map(_concatenated, (steps, values, times)))


def _concatenated(parts: list[np.ndarray]) -> np.ndarray:
    """Join arrays, and clear the list, so that memory does not hold them twice."""
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    parts.clear()
    return whole


_META = "meta"
_OF_VERSION = ("uid", "status", "heartbeat", "stop_time")
# Runs per query: for fields, for facts about points, and for points, which are all held at once.
_BATCH, _BATCH_OF_SERIES, _HELD = 500, 64, 8


class MongoBatches(MongoRecords):
    """The part of the store that reads many records of a database at once."""

    def read_ahead(self, runs: Sequence[R], names: Sequence[str]) -> Iterator[tuple[R, dict[str, Any]]]:
        fields = [name for name in names if name != "metrics"]
        for batch in _batches(runs, _BATCH):
            if fields:
                yield from self._fields_of(batch, fields)
            if "metrics" in names:
                yield from self._metrics_of(batch)

    def _fields_of(self, runs: Sequence[R], names: Sequence[str]) -> Iterator[tuple[R, dict[str, Any]]]:
        parts, fields = [name for name in names if name in PARTS], [name for name in names if name not in PARTS]
        with self.mongo.errors():
            documents = list(self._documents_of(runs, _projection(parts, fields)))
        names_of: dict[tuple[str, str], list[str]] = {}
        for run, document in documents:
            has_meta = any(name.partition(".")[0] == _META for name in fields)
            values = {**row_in(self._with_exact_meta(run, document) if has_meta else document, fields)}
            values |= _exact_times(document, fields)
            for part in parts:
                with contextlib.suppress(StoreError):  # the run reports it when asked
                    values[part] = self.mapping_in(run, part, document)
            if not values.get("summary", True):
                values["summary"] = self.computed_summary(run.key)
            elif has_changed_keys(values.get("summary", {})):
                names_of = names_of or self._names_of(runs)
                values["summary"] = as_named(values["summary"], names_of.get(_place(run.key), ()))
            yield run, values

    def _with_exact_meta(self, run: StoredRun, document: Document) -> Document:
        stored = {key: document[key] for key in (_META, "uid") if key in document}
        return {**document, **self.exact_entries(run, stored, document.get("exact"))}

    def _documents_of(self, runs: Sequence[R], projection: Mapping[str, int]) -> Iterator[tuple[R, Document]]:
        by_key = {_place(run.key): run for run in runs}
        for document in self.mongo.runs.find({"_id": {"$in": [run.key for run in runs]}}, projection):
            run = by_key.get(_place(document["_id"]))
            if run is not None:
                yield run, document

    def _metrics_of(self, runs: Sequence[R]) -> Iterator[tuple[R, dict[str, Any]]]:
        names, curves = self._names_of(runs), self._curves_of(runs)
        for run in runs:
            place = _place(run.key)
            yield run, {"metrics": names.get(place, [])} | ({"curves": curves[place]} if place in curves else {})

    def _names_of(self, runs: Sequence[StoredRun]) -> dict[tuple[str, str], list[str]]:
        grouped: list[dict[str, Any]] = [
            {"$match": {"run_id": {"$in": [run.key for run in runs]}}},
            {"$group": {"_id": "$run_id", "names": {"$addToSet": "$name"}}},
        ]
        with self.mongo.errors():
            names = {_place(group["_id"]): group["names"] for group in self.mongo.metrics.aggregate(grouped)}
        return {place: [name for name in found if isinstance(name, str)] for place, found in names.items()}

    def _curves_of(self, runs: Sequence[StoredRun]) -> dict[tuple[str, str], list[str]]:
        """Return the names of the curves in the runs' `info`, which takes only the first value of each list."""
        info = {"$cond": [{"$eq": [{"$type": "$info"}, "object"]}, "$info", {}]}
        first = {"$cond": [{"$isArray": "$$this.v"}, {"$slice": ["$$this.v", 1]}, f"$$this.v.{FILE}"]}
        begun = {"$map": {"input": {"$objectToArray": info}, "in": {"k": "$$this.k", "v": first}}}
        shape = {"entries": begun, "is_exact": {"$ne": [{"$type": "$exact.info"}, "missing"]}}
        asked: list[dict[str, Any]] = [{"$match": {"_id": {"$in": [run.key for run in runs]}}}, {"$project": shape}]
        found = {}
        with self.mongo.errors():
            for one in self.mongo.runs.aggregate(asked):
                entries = {entry["k"]: entry.get("v") for entry in one["entries"]}
                # A text stands for a list in a file, which the run reads.
                if not one["is_exact"] and not any(isinstance(value, str) for value in entries.values()):
                    found[_place(one["_id"])] = curves_in(as_recorded(entries))
        return found

    def series(self, runs: Sequence[R], metric: str) -> Iterator[tuple[R, Series | None]]:
        for batch in _batches(runs, _BATCH_OF_SERIES):
            longer = {_place(run.key) for run in batch}  # of a single run, both are asked for anyway
            if len(batch) > 1:
                self._hold(batch, ["start_time"])
                with self.mongo.errors():
                    longer = {_place(key) for key in self.mongo.chunks.distinct("run_id", _of_metric(batch, metric))}
            for held in _batches(batch, _HELD):
                documents = self._documents_of_series(held, metric)
                for run in held:
                    first = documents.get(_place(run.key))
                    yield run, None if first is None else self._series_in(run, metric, first, longer)

    def _hold(self, runs: Sequence[StoredRun], names: Sequence[str]) -> None:
        """Let runs hold fields, which are fetched for those that do not."""
        for run, values in self.read_ahead([run for run in runs if not all(map(run.holds, names))], names):
            run.hold(values)

    def _documents_of_series(self, runs: Sequence[StoredRun], metric: str) -> dict[tuple[str, str], Document]:
        """Return the document that the points of each run begin in."""
        with self.mongo.errors():
            raw = self.mongo.raw_metrics.find(_of_metric(runs, metric), SERIES_FIELDS)
            decoded = (decode_arrays(bytes(one.raw)) for one in raw)
            return {_place(document["run_id"]): document for document in decoded}

    def _series_in(
        self, run: StoredRun, metric: str, document: Document, longer: Set[tuple[str, str]]
    ) -> Series | None:
        """Return the points of a metric from its document, with `SERIES_FIELDS`, and any further ones from chunks."""
        self._hold([run], ["start_time"])
        series = series_of(document, start_of(run))
        if series is None or _place(run.key) not in longer:
            return series
        query = {"run_id": run.key, "name": metric}
        with self.mongo.errors():
            return joined(series, self.mongo.chunks.find(query, {"data": 1, "float_steps": 1}, sort=[("index", 1)]))

    def points_versions(self, runs: Sequence[StoredRun], metric: str) -> list[Hashable | None]:
        # A run that was resumed may have as many points as before, but another heartbeat.
        self._hold(runs, _OF_VERSION)
        query = _of_metric(runs, metric)
        of_chunks = [{"$match": query}, {"$group": {"_id": "$run_id", "count": {"$sum": "$count"}}}]
        with self.mongo.errors():
            counted = self.mongo.metrics.find(query, {"run_id": 1, "count": 1})
            counts = {_place(one["run_id"]): one.get("count") for one in counted}
            more = {_place(one["_id"]): one["count"] for one in self.mongo.chunks.aggregate(of_chunks)}

        def version(run: StoredRun) -> Hashable | None:
            place = _place(run.key)
            if run.is_living or counts.get(place) is None:  # stock Sacred does not count
                return None
            return (*(str(run.get(name)) for name in _OF_VERSION), counts[place], more.get(place, 0))

        return [version(run) for run in runs]


def _projection(parts: Sequence[str], fields: Sequence[str]) -> dict[str, int]:
    # The exact form of `meta`, with keys that MongoDB cannot hold, covers all of it.
    paths = [_META if name.startswith(f"{_META}.") else name for name in fields]
    projection = {**projection_of(paths), "microseconds": 1, "uid": 1}
    projection |= dict.fromkeys([path for part in parts for path in fields_of_part(part)], 1)
    if _META in paths and "exact" not in projection:
        projection["exact.run"] = 1
    return projection


def _exact_times(document: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return times as recorded, to the microsecond; MongoDB rounds them."""
    texts = mapping_of(document.get("microseconds"))
    return {name: from_bson(exact_time(document.get(name), texts[name])) for name in names if name in texts}


def _of_metric(runs: Sequence[StoredRun], metric: str) -> dict[str, Any]:
    """Return the query for the documents of one metric of many runs."""
    return {"run_id": {"$in": [run.key for run in runs]}, "name": metric}


def _place(key: Any) -> tuple[str, str]:
    """Return an `_id` of any type as a dictionary key; numbers of equal value share one."""
    return ("number" if isinstance(key, int | float) else type(key).__name__), str(key)


def _batches(runs: Sequence[R], size: int) -> Iterator[Sequence[R]]:
    return (runs[start : start + size] for start in range(0, len(runs), size))
