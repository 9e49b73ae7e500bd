"""Fields and points of many runs of a database, by one query for all of them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from observers.mongo.run_document import exact_time
from runs.errors import StoreError
from runs.stores.mongo.bson_arrays import decode_arrays
from runs.stores.mongo.bson_values import plain
from runs.stores.mongo.database import MongoDatabase
from runs.stores.mongo.rows import projection_of, row_in
from runs.stores.mongo.run import SERIES_FIELDS, MongoRun, fields_of_part

if TYPE_CHECKING:
    from observers.record.points.points import Series

__all__ = ["prefetch_from", "series_from"]

_PARTS = frozenset(("config", "info", "summary", "provenance"))
_META = "meta"
# Runs of one query: of their fields, and of their points, which are held all at once.
_BATCH, _BATCH_OF_SERIES = 500, 64


def prefetch_from(mongo: MongoDatabase, runs: Sequence[MongoRun], names: Sequence[str]) -> None:
    """Let runs hold fields of theirs; see `runs.stores.store.Store.prefetch`."""
    fields = [name for name in names if name != "metrics"]
    lacking = [run for run in runs if not all(map(run.holds, fields))]
    for batch in _batches(lacking, _BATCH):
        _hold_fields(mongo, batch, fields)
    if "metrics" in names:
        for batch in _batches([run for run in runs if not run.holds("metrics")], _BATCH):
            _hold_metric_names(mongo, batch)


def _hold_fields(mongo: MongoDatabase, runs: Sequence[MongoRun], names: Sequence[str]) -> None:
    parts, others = [name for name in names if name in _PARTS], [name for name in names if name not in _PARTS]
    # What `meta` was recorded as, with keys that MongoDB cannot hold, is told of the whole of it.
    fields = [_META if name.startswith(f"{_META}.") else name for name in others]
    projection = {**projection_of(fields), "microseconds": 1, "uid": 1} | dict.fromkeys(
        itertools.chain(*map(fields_of_part, parts)), 1
    )
    if _META in fields and "exact" not in projection:
        projection["exact.run"] = 1
    by_key = {_place(run.key): run for run in runs}
    with mongo.errors():
        for document in mongo.runs.find({"_id": {"$in": [run.key for run in runs]}}, projection):
            run = by_key.get(_place(document["_id"]))
            if run is None:
                continue  # one that says so itself when it is asked
            given = run.with_exact_entries(document, [_META]) if _META in fields else document
            run.hold({**row_in(given, others), **_exact_times(document, others)})
            for part in parts:
                with contextlib.suppress(StoreError):
                    run.hold_part(part, document)


def _exact_times(document: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the times among some fields as they were recorded, which a database rounds."""
    recorded = document.get("microseconds")
    found = recorded if isinstance(recorded, Mapping) else {}
    return {name: plain(exact_time(document.get(name), found[name])) for name in names if name in found}


def _hold_metric_names(mongo: MongoDatabase, runs: Sequence[MongoRun]) -> None:
    grouped: list[dict[str, Any]] = [
        {"$match": {"run_id": {"$in": [run.key for run in runs]}}},
        {"$group": {"_id": "$run_id", "names": {"$addToSet": "$name"}}},
    ]
    with mongo.errors():
        names = {_place(found["_id"]): found["names"] for found in mongo.metrics.aggregate(grouped)}
    for run in runs:
        run.hold_metric_names([name for name in names.get(_place(run.key), ()) if isinstance(name, str)])


def series_from(
    mongo: MongoDatabase, runs: Sequence[MongoRun], metric: str
) -> Iterator[tuple[MongoRun, Series | None]]:
    """Yield a metric of each run; see `runs.stores.store.Store.each_series`."""
    for batch in _batches(runs, _BATCH_OF_SERIES):
        by_key = {_place(run.key): run for run in batch}
        wanted = {"run_id": {"$in": [run.key for run in batch]}, "name": metric}
        with mongo.errors():
            for document in mongo.runs.find({"_id": {"$in": [run.key for run in batch]}}, {"start_time": 1}):
                if _place(document["_id"]) in by_key:
                    by_key[_place(document["_id"])].hold_start(document)
            longer = {_place(key) for key in mongo.chunks.distinct("run_id", wanted)}
            found = (decode_arrays(bytes(one.raw)) for one in mongo.raw_metrics.find(wanted, SERIES_FIELDS))
            documents = {_place(document["run_id"]): document for document in found}
        for run in batch:
            first = documents.get(_place(run.key))
            yield run, None if first is None else run.series_in(first, metric, _place(run.key) in longer)


def _place(key: Any) -> tuple[str, str]:
    """Return an `_id`, which may be of any kind, as what can be looked up; numbers of equal value are one."""
    return ("number" if isinstance(key, int | float) else type(key).__name__), str(key)


def _batches(runs: Sequence[MongoRun], size: int) -> Iterator[Sequence[MongoRun]]:
    return (runs[start : start + size] for start in range(0, len(runs), size))
