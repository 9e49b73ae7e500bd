"""Runs in a MongoDB database, the lab's and those of Sacred's MongoObserver."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sacristan.configs.map import value_at
from sacristan.observers.mongo.documents import stored_key
from sacristan.observers.record.identity import true_status
from sacristan.runs.query import (
    DURATION,
    LEFT_OUT,
    STATISTICS,
    duration_s,
    id_of,
    mapping_of,
    mappings_in,
    without_pickles,
)
from sacristan.runs.query.filters import Condition, Filter, Question, in_order, matches
from sacristan.runs.query.index.fields import flatten
from sacristan.runs.stores import COPYING, Added, Discarded, Removed, RunRow, StagedRun, StoredRun, discarder
from sacristan.runs.stores.mongo.batches import MongoBatches
from sacristan.runs.stores.mongo.database import BATCH, Document, MongoDatabase
from sacristan.runs.stores.mongo.documents import MongoDocuments
from sacristan.runs.stores.mongo.queries import (
    OMNIBOARD_NOTES,
    STATUS_FIELDS,
    ComputedConditions,
    exists,
    from_bson,
    keys_of,
    projection_of,
    query_of,
    row_in,
    sort_stages,
    stored_path,
)
from sacristan.runs.stores.mongo.whole_runs import (
    DISCARDED,
    IN_TRASH,
    TRASH,
    Remover,
    changed_entries,
    deliver_whole,
    unnamed_files,
)

__all__ = ["MongoBackend"]

# Parts that may hold numbers as Sacred's serializer writes them.
_MAY_BE_SERIALIZED = ("result", "info")
# Number of runs whose fields `fields` returns.
_SAMPLE = 200
# Entries of a run's document, and the type that each must have.
_TYPES: dict[str, tuple[str, type]] = {
    "status": ("string", str), "config": ("object", Mapping), "info": ("object", Mapping)
}  # fmt: skip


class MongoBackend(MongoBatches):
    """All runs of a database."""

    def __init__(self, address: str) -> None:
        self.mongo = MongoDatabase(address)
        self.where, self.address = self.mongo.where, self.mongo.destination.address
        self.documents = MongoDocuments(self.mongo)
        self._computed = ComputedConditions(self.mongo)
        # The last answer of `unreadable`, which reads every document, and its time.
        self._odd_runs: list[tuple[str, str]] = []
        self._judged_at = -math.inf

    def __reduce__(self) -> tuple[Any, ...]:
        return MongoBackend, (self.address,)

    def close(self) -> None:
        self.mongo.close()

    # ------------------------------------------------------------------ finding

    def find(self, question: Question) -> list[RunRow]:
        if question.offset:
            question = self._page(question)
        with self.mongo.errors():
            question = dataclasses.replace(question, tree=self._computed.replaced(question.tree))
            computed = list(self._computed_here(question))
            if not computed:
                return [*self._find_there(self._kept(), question)]
            # A query still finds the others, by an index, however many there are.
            rows = self._find_there({"$nor": [IN_TRASH, *computed]}, question)
            rows += self._find_here({"$nor": [IN_TRASH], "$or": computed}, question)
            return [*_in_order(rows, question)[: question.limit]]

    def _page(self, question: Question) -> Question:
        """Return the question for the runs of a page: an index can return ids alone, but not fields."""
        end = None if question.limit is None else question.offset + question.limit
        ids = [id_of(row.id) for row in self.find(dataclasses.replace(question, limit=end, offset=0, columns=()))]
        return dataclasses.replace(question, tree=Condition("_id", "in", ids[question.offset :]), offset=0)

    def count(self, tree: Filter, limit: int | None) -> int:
        with self.mongo.errors():
            question = Question(self._computed.replaced(tree))
            computed = list(self._computed_here(question))
            query = _both(query_of(question.tree), {"$nor": [IN_TRASH, *computed]} if computed else self._kept())
            most = math.inf if limit is None else limit
            if not query:
                return int(min(self.mongo.runs.estimated_document_count(), most))
            bound: dict[str, Any] = {} if limit is None else {"limit": limit}
            num = self.mongo.runs.count_documents(query, **bound)
            if computed and num < most:
                num += len(self._find_here({"$nor": [IN_TRASH], "$or": computed}, question))
            return int(min(num, most))

    def _kept(self) -> Document:
        """Return a query for runs outside the trash; it is empty if the trash is, as an index alone can then count."""
        return {} if self.mongo.runs.find_one({"status": DISCARDED}, {"_id": 1}) is None else {"$nor": [IN_TRASH]}

    def _computed_here(self, question: Question) -> Iterator[Document]:
        """Yield queries for the runs with fields that no query can compute."""
        if self._has_stock_runs and any(name.startswith("summary") for name in question.names):
            yield {"uid": {"$not": {"$gt": ""}}}
        for name in sorted(filter(self._has_serialized, question.judged)):
            yield _is_serialized(name)
        if not question.judged.isdisjoint(("status", DURATION)):
            yield {"status": "RUNNING"}  # or DEAD, and its duration changes
        if "note" in question.judged:
            yield {OMNIBOARD_NOTES: {"$type": "string"}}

    def _find_there(self, among: Mapping[str, Any], question: Question) -> list[RunRow]:
        """Answer a question by queries among the runs that the query `among` finds."""
        query = _both(query_of(question.tree), among)
        if question.by == DURATION:
            return self._find_here(query, dataclasses.replace(question, tree=Question().tree))
        projection = projection_of(sorted(question.names))
        documents: list[Document] = []
        for condition, path, direction in sort_stages(question):
            left = 0 if question.limit is None else question.limit - len(documents)
            if question.limit is None or left > 0:
                documents += self._sorted(_both(query, condition), path, direction, left, projection)
        return [_row(document["_id"], row_in(document, question.names)) for document in documents]

    def _sorted(
        self, query: Mapping[str, Any], path: str, direction: int, limit: int, projection: Mapping[str, int]
    ) -> list[Document]:
        """Return documents sorted by one field, and ties by id: an index serves the field alone, not both."""
        runs = self.mongo.runs
        documents = list(runs.find(query, projection, batch_size=BATCH).sort(path, direction).limit(limit))
        if path == "_id" or not documents:
            return documents
        if limit and len(documents) == limit:
            # The limit chose at random between documents that tie with the last one.
            last = value_at(documents[-1], path)
            before = [document for document in documents if from_bson(value_at(document, path)) != from_bson(last)]
            equal = {"$and": [query, {path: {"$eq": last}}]}
            documents = before + list(runs.find(equal, projection).sort("_id", 1).limit(limit - len(before)))
        groups = itertools.groupby(documents, lambda document: from_bson(value_at(document, path)))
        return [
            document
            for _, ties in groups
            for document in sorted(ties, key=lambda document: _order_of_id(document["_id"]))
        ]

    @functools.cached_property
    def _has_stock_runs(self) -> bool:
        """True if there are runs without a uid, for which stock Sacred recorded no summary."""
        with self.mongo.errors():
            with_uid = self.mongo.runs.count_documents({"uid": {"$gt": ""}})
            return self.mongo.runs.estimated_document_count() > with_uid + self.mongo.runs.count_documents(IN_TRASH)

    def _has_serialized(self, name: str) -> bool:
        """Tell whether any run has a NumPy scalar in a field as Sacred serializes it, which queries cannot match."""
        if name.partition(".")[0] not in _MAY_BE_SERIALIZED:
            return False
        return self.mongo.runs.find_one(_is_serialized(name), {"_id": 1}) is not None

    def _find_here(self, query: Mapping[str, Any], question: Question) -> list[RunRow]:
        """Answer a question on fields that no query can compute, among the runs that `query` finds."""
        names = sorted(question.names | {"status"})
        computed = sorted(name for name in question.names if name.startswith("summary"))
        metrics = {_metric_of(name) for name in computed}
        wanted = None if None in metrics else {metric for metric in metrics if metric is not None}
        rows: list[RunRow] = []
        projection = {**projection_of(names), "uid": 1}
        for document in self.mongo.runs.find(query, projection, sort=[("_id", 1)], batch_size=BATCH):
            values = row_in(document, names)
            if computed and document.get("uid") is None:
                values |= _statistics(self.computed_summary(document["_id"], wanted), computed)
            row = _row(document["_id"], values)
            if matches(question.tree, functools.partial(_field, row)):
                rows.append(row)
        return _in_order(rows, question)[: question.limit]

    def get(self, ids: Iterable[str]) -> dict[str, RunRow]:
        asked = list(ids)
        query = {"$or": [{"_id": {"$in": [key for id in asked for key in keys_of(id)]}}, {"uid": {"$in": asked}}]}
        with self.mongo.errors():
            documents = list(self.mongo.runs.find({**query, "$nor": [IN_TRASH]}, {"_id": 1, "uid": 1}))
        by_uid = {str(document.get("uid")): _row(document["_id"]) for document in documents}
        by_id = {str(document["_id"]): _row(document["_id"]) for document in documents}
        return {id: row for id in asked if (row := by_id.get(id) or by_uid.get(id)) is not None}

    # ------------------------------------------------------------------ fields

    def _has_field(self, name: str) -> bool:
        with self.mongo.errors():
            newest = [("$natural", -1)]  # which have the fields of today's code
            if self.mongo.runs.find_one(_both(exists(name), self._kept()), {"_id": 1}, sort=newest) is not None:
                return True
            if not name.startswith("summary.") or not self._has_stock_runs:
                return False
            # The name may be that of a metric, which has statistics below it.
            metrics = {_metric_of(name), name.removeprefix("summary.")} - {None}
            return self.mongo.metrics.find_one({"name": {"$in": sorted(map(str, metrics))}}, {"_id": 1}) is not None

    def fields(self, name: str | None = None) -> list[str]:
        if name is not None:
            return [name] if self._has_field(name) else []
        with self.mongo.errors():
            left_out = {"captured_out": 0, "provenance.packages": 0}
            newest = self.mongo.runs.find({}, left_out, sort=[("$natural", -1)]).limit(_SAMPLE)
            names = {name for document in newest for name in _fields_of(from_bson(document))}
            if self._has_stock_runs:
                names |= {f"summary.{m}.{s}" for m in self.mongo.metrics.distinct("name") for s in STATISTICS}
        return sorted(names)

    def unreadable(self, max_age_s: float) -> list[tuple[str, str]]:
        """Return the runs whose documents have entries of wrong types."""
        odd: list[Document] = [{name: {"$exists": True, "$not": {"$type": kind}}} for name, (kind, _) in _TYPES.items()]
        query = {"$or": [*odd, {"status": {"$exists": False}}], "$nor": [IN_TRASH]}
        if time.monotonic() - self._judged_at > max_age_s:
            with self.mongo.errors():
                documents = list(self.mongo.runs.find(query, dict.fromkeys(_TYPES, 1), sort=[("_id", 1)]))
            self._odd_runs = [(str(document["_id"]), "; ".join(_oddities(document))) for document in documents]
            self._judged_at = time.monotonic()
        return list(self._odd_runs)

    # ------------------------------------------------------------------ whole runs

    def remove(self, run: StoredRun, *, to_trash: bool = False) -> Any:
        with self.mongo.errors():
            remover = Remover(self.mongo)
            (remover.discard if to_trash else remover.remove)(run.key)
        return run.key

    def trash(self) -> list[tuple[Discarded, Any]]:
        with self.mongo.errors():
            return [(_discarded(document), document["_id"]) for document in Remover(self.mongo).trash()]

    def restore(self, place: Any) -> str:
        with self.mongo.errors():
            Remover(self.mongo).restore(place)
        return str(place)

    def remove_version(self, name: str, version: int) -> None:
        with self.mongo.errors():
            Remover(self.mongo).remove_version(name, version)

    def reclaim(self, removed: Removed, grace_s: float, *, empties_trash: bool = False) -> None:
        with self.mongo.errors():
            remover = Remover(self.mongo)
            removed.runs += remover.empty_trash() if empties_trash else []
            remover.reclaim(removed, grace_s)

    def add(self, staged: StagedRun) -> Added:
        with self.mongo.errors():
            present = self.mongo.runs.find_one({"uid": staged.uid}, dict.fromkeys(STATUS_FIELDS, 1))
        if present is not None and true_status(from_bson(present), from_bson(present.get("lease"))) != COPYING:
            return Added(str(present["_id"]), is_new=False)
        left_out = (*staged.left_out, *unnamed_files(staged.folder), *changed_entries(staged.folder))
        return Added(str(deliver_whole(staged, self.mongo)), is_new=True, left_out=left_out)


def _row(key: Any, values: Mapping[str, Any] | None = None) -> RunRow:
    return RunRow(str(key), key, values or {})


def _field(row: RunRow, name: str) -> Any:
    """Return a field of a row; a summary left out of it is there, too."""
    return row.id if name == "_id" else row.values.get(name, {} if name == "summary" else None)


def _statistics(summary: Mapping[str, Any], names: Iterable[str]) -> Document:
    """Return the fields `names`, `summary` or below it, from statistics by metric."""
    values: Document = {}
    for name in names:
        metric, _, statistic = name.removeprefix("summary").removeprefix(".").rpartition(".")
        values[name] = summary.get(metric, {}).get(statistic) if metric or statistic else summary
    return values


def _both(first: Mapping[str, Any], second: Mapping[str, Any]) -> Document:
    """Return a query for documents that meet two queries, either of which may be empty."""
    return {"$and": [first, second]} if first and second else dict(first or second)


def _is_serialized(name: str) -> Document:
    return {f"{stored_path(name)}.dtype": {"$type": "string"}}


def _discarded(document: Document) -> Discarded:
    name, kept = mapping_of(document.get("experiment")).get("name"), document[TRASH]
    uid = kept.get("uid") if isinstance(kept.get("uid"), str) else None
    at = (kept["at"] if isinstance(kept.get("at"), datetime) else datetime(1970, 1, 1)).replace(tzinfo=UTC)
    status = true_status(kept, kept.get("lease"))
    by = discarder(from_bson(document.get("changes")))
    return Discarded(str(document["_id"]), uid, str(name or ""), str(status or ""), at, by)


def _in_order(rows: Sequence[RunRow], question: Question) -> list[RunRow]:
    """Return rows in the order of a question, with ties sorted by id."""
    is_by_id = question.by == "_id"
    by_id = sorted(rows, key=lambda row: _order_of_id(row.key), reverse=question.descending and is_by_id)
    if is_by_id:
        return by_id
    return in_order(by_id, lambda row: row.values.get(question.by), descending=question.descending)


def _order_of_id(key: Any) -> Any:
    # Python cannot compare ids of different types, such as numbers and texts.
    return str(type(key)), key


def _oddities(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong in a run's document."""
    if "status" not in document:
        yield "it has no status: this is not a run"
    for name, (_, kind) in _TYPES.items():
        if name in document and not isinstance(document[name], kind):
            expected = "text" if kind is str else "an object"
            yield f"{name}: got {type(document[name]).__name__}, expected {expected}"


def _fields_of(document: Document) -> set[str]:
    """Return the full names of the fields of a document."""
    summary = document.pop("summary", None)
    logged = [entry.get("name") for entry in mappings_in(mapping_of(document.get("info")).get("metrics"))]
    names = {stored_key(name): name for name in logged if isinstance(name, str)}
    if "result" in document:
        document["result"] = without_pickles(document["result"], twice=True)
    flat: Document = {}
    flatten(document, "", flat, LEFT_OUT)
    if duration_s(document) is not None:
        flat[DURATION] = None
    metrics = {names.get(key, key) for key in mapping_of(summary)}
    return flat.keys() | {f"summary.{metric}.{each}" for metric in metrics for each in STATISTICS}


def _metric_of(name: str) -> str | None:
    """Return the metric of a full name such as `summary.val/loss.min`; None if it covers all metrics."""
    return name.removeprefix("summary").removeprefix(".").rpartition(".")[0] or None
