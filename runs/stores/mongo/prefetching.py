"""Fields and points of many runs of a database, in one query for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sacristan.observers.mongo.documents import FILE, exact_time
from sacristan.runs.errors import StoreError
from sacristan.runs.query.flattening import mapping_of
from sacristan.runs.query.serialized import without_pickles
from sacristan.runs.stores.mongo.bson_arrays import decode_arrays
from sacristan.runs.stores.mongo.database import Document, MongoDatabase
from sacristan.runs.stores.mongo.documents import from_bson, projection_of, row_in
from sacristan.runs.stores.mongo.run import SERIES_FIELDS, MongoRun, fields_of_part
from sacristan.runs.stores.run import PARTS, curves_in

if TYPE_CHECKING:
    from sacristan.observers.record.points.points import Series

__all__ = ["points_versions_in", "prefetch_from", "series_from"]

_META = "meta"
_OF_VERSION = ("uid", "status", "heartbeat", "stop_time")
# Runs per query: for fields, for facts about points, and for points, which are all held at once.
_BATCH, _BATCH_OF_SERIES, _HELD = 500, 64, 8


def prefetch_from(mongo: MongoDatabase, runs: Sequence[MongoRun], names: Sequence[str]) -> None:
    """Fetch fields for all runs that do not hold them yet; see `sacristan.runs.stores.store.Store.prefetch`."""
    fields = [name for name in names if name != "metrics"]
    for batch in _batches([run for run in runs if not all(map(run.holds, fields))], _BATCH):
        _hold_fields(mongo, batch, fields)
    if "metrics" in names:
        for batch in _batches([run for run in runs if not run.holds("metrics")], _BATCH):
            _hold_metric_names(mongo, batch)


def _hold_fields(mongo: MongoDatabase, runs: Sequence[MongoRun], names: Sequence[str]) -> None:
    parts, fields = [name for name in names if name in PARTS], [name for name in names if name not in PARTS]
    with mongo.errors():
        for run, document in _documents_of(mongo, runs, _projection(parts, fields)):
            _hold(run, document, parts, fields)


def _documents_of(
    mongo: MongoDatabase, runs: Sequence[MongoRun], projection: Mapping[str, int]
) -> Iterator[tuple[MongoRun, Document]]:
    by_key = {_place(run.key): run for run in runs}
    for document in mongo.runs.find({"_id": {"$in": [run.key for run in runs]}}, projection):
        run = by_key.get(_place(document["_id"]))
        if run is not None:
            yield run, document


def _projection(parts: Sequence[str], fields: Sequence[str]) -> dict[str, int]:
    # The exact form of `meta`, with keys that MongoDB cannot hold, covers all of it.
    paths = [_META if name.startswith(f"{_META}.") else name for name in fields]
    projection = {**projection_of(paths), "microseconds": 1, "uid": 1}
    projection |= dict.fromkeys([path for part in parts for path in fields_of_part(part)], 1)
    if _META in paths and "exact" not in projection:
        projection["exact.run"] = 1
    return projection


def _hold(run: MongoRun, document: Document, parts: Sequence[str], fields: Sequence[str]) -> None:
    has_meta = any(name.partition(".")[0] == _META for name in fields)
    exact = run.with_exact_entries(document, [_META]) if has_meta else document
    run.hold({**row_in(exact, fields), **_exact_times(document, fields)})
    if "start_time" in fields:
        run.hold_start(document)
    for part in parts:
        with contextlib.suppress(StoreError):  # the run reports it when asked
            run.hold_part(part, document)


def _exact_times(document: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return times as recorded, to the microsecond; MongoDB rounds them."""
    texts = mapping_of(document.get("microseconds"))
    return {name: from_bson(exact_time(document.get(name), texts[name])) for name in names if name in texts}


def _hold_metric_names(mongo: MongoDatabase, runs: Sequence[MongoRun]) -> None:
    grouped: list[dict[str, Any]] = [
        {"$match": {"run_id": {"$in": [run.key for run in runs]}}},
        {"$group": {"_id": "$run_id", "names": {"$addToSet": "$name"}}},
    ]
    with mongo.errors():
        names = {_place(group["_id"]): group["names"] for group in mongo.metrics.aggregate(grouped)}
    for run in runs:
        run.hold_metric_names([name for name in names.get(_place(run.key), ()) if isinstance(name, str)])
    _hold_curves_in_info(mongo, runs)


def _hold_curves_in_info(mongo: MongoDatabase, runs: Sequence[MongoRun]) -> None:
    """Fetch the names of the curves in the runs' `info`, which takes only the first value of each list."""
    info = {"$cond": [{"$eq": [{"$type": "$info"}, "object"]}, "$info", {}]}
    first = {"$cond": [{"$isArray": "$$this.v"}, {"$slice": ["$$this.v", 1]}, f"$$this.v.{FILE}"]}
    begun = {"$map": {"input": {"$objectToArray": info}, "in": {"k": "$$this.k", "v": first}}}
    shape = {"entries": begun, "is_exact": {"$ne": [{"$type": "$exact.info"}, "missing"]}}
    asked: list[dict[str, Any]] = [{"$match": {"_id": {"$in": [run.key for run in runs]}}}, {"$project": shape}]
    with mongo.errors():
        found = {_place(one["_id"]): one for one in mongo.runs.aggregate(asked)}
    for run in runs:
        one = found.get(_place(run.key))
        if one is None or one["is_exact"]:
            continue
        entries = {entry["k"]: entry.get("v") for entry in one["entries"]}
        if not any(isinstance(value, str) for value in entries.values()):  # a list in a file, which the run reads
            run.curves_in_info = curves_in(without_pickles(from_bson(entries)))


def series_from(
    mongo: MongoDatabase, runs: Sequence[MongoRun], metric: str
) -> Iterator[tuple[MongoRun, Series | None]]:
    """Yield each run with the points of a metric; see `sacristan.runs.stores.store.Store.each_series`."""
    for batch in _batches(runs, _BATCH_OF_SERIES):
        query = _of_metric(batch, metric)
        with mongo.errors():
            if without := [run for run in batch if not run.holds_start]:
                for run, document in _documents_of(mongo, without, {"start_time": 1}):
                    run.hold_start(document)
            longer = {_place(key) for key in mongo.chunks.distinct("run_id", query)}
        for held in _batches(batch, _HELD):
            for run, first in _documents_of_series(mongo, held, metric):
                yield run, None if first is None else run.series_in(first, metric, _place(run.key) in longer)


def points_versions_in(mongo: MongoDatabase, runs: Sequence[MongoRun], metric: str) -> list[Hashable | None]:
    """Return for each run a value that changes with the points of a metric; see `Store.points_versions`.

    A run that was resumed may have as many points as before, but another heartbeat.
    """
    prefetch_from(mongo, runs, _OF_VERSION)
    query = _of_metric(runs, metric)
    of_chunks = [{"$match": query}, {"$group": {"_id": "$run_id", "count": {"$sum": "$count"}}}]
    with mongo.errors():
        counts = {
            _place(one["run_id"]): one.get("count") for one in mongo.metrics.find(query, {"run_id": 1, "count": 1})
        }
        more = {_place(one["_id"]): one["count"] for one in mongo.chunks.aggregate(of_chunks)}

    def version(run: MongoRun) -> Hashable | None:
        place = _place(run.key)
        if run.is_living or counts.get(place) is None:  # stock Sacred does not count
            return None
        return (*(str(run.get(name)) for name in _OF_VERSION), counts[place], more.get(place, 0))

    return [version(run) for run in runs]


def _documents_of_series(
    mongo: MongoDatabase, runs: Sequence[MongoRun], metric: str
) -> list[tuple[MongoRun, Document | None]]:
    """Return each run with the document that its points begin in; None where it lacks the metric."""
    query = _of_metric(runs, metric)
    with mongo.errors():
        decoded = (decode_arrays(bytes(one.raw)) for one in mongo.raw_metrics.find(query, SERIES_FIELDS))
        documents = {_place(document["run_id"]): document for document in decoded}
    return [(run, documents.get(_place(run.key))) for run in runs]


def _of_metric(runs: Sequence[MongoRun], metric: str) -> dict[str, Any]:
    """Return the query for the documents of one metric of many runs."""
    return {"run_id": {"$in": [run.key for run in runs]}, "name": metric}


def _place(key: Any) -> tuple[str, str]:
    """Return an `_id` of any type as a dictionary key; numbers of equal value share one."""
    return ("number" if isinstance(key, int | float) else type(key).__name__), str(key)


def _batches(runs: Sequence[MongoRun], size: int) -> Iterator[Sequence[MongoRun]]:
    return (runs[start : start + size] for start in range(0, len(runs), size))
