"""Runs in a MongoDB database, ours and those of Sacred's MongoObserver."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import bson

from observers.mongo.documents import stored_key
from observers.record.identity import true_status
from runs.query.filters import Condition, Filter, Not, Words, holds, in_order, matches, names_in
from runs.query.index.fields import LEFT_OUT, flatten
from runs.query.names import STATISTICS, full_name, id_of
from runs.query.serialized import without_pickles
from runs.query.times import DURATION, duration_s
from runs.stores.adding import Copied, StagedRun
from runs.stores.mongo.adding import changed_entries, deliver_whole, unnamed_files
from runs.stores.mongo.bson_values import plain
from runs.stores.mongo.database import BATCH, Document, MongoDatabase
from runs.stores.mongo.filters import OMNIBOARD_NOTES, exists, query_of, sort_stages, stored_path
from runs.stores.mongo.prefetching import prefetch_from, series_from
from runs.stores.mongo.removing import DISCARDED, IN_TRASH, TRASH, Remover
from runs.stores.mongo.rows import projection_of, row_in, value_at
from runs.stores.mongo.run import STATUS_FIELDS, MongoRun
from runs.stores.mongo.words import WordSearch
from runs.stores.removing import Discarded, Removed
from runs.stores.run import COPYING, Run
from runs.stores.store import Store

if TYPE_CHECKING:
    from observers.record.points.points import Series
    from runs.stores.artifact_versions import StoredArtifact

__all__ = ["MongoStore"]

# Fields that a run computes.
_MAY_BE_SERIALIZED = ("result", "info")
# How many runs tell which fields there are.
_SAMPLE = 200


class MongoStore(Store):
    """All runs of a database.

    Attributes:
        mongo: The database.

    Raises:
        StoreError: If the server cannot be reached or refuses.
    """

    def __init__(self, url: str, prefix: str = "") -> None:
        self.mongo = MongoDatabase(url, prefix)
        self.where = self.mongo.where
        self._words = WordSearch(self.mongo)
        # What `unreadable` found, which looks at every document, and when.
        self._odd_runs: list[tuple[str, str]] = []
        self._judged_at = -math.inf

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where it is, with the credentials of its URL; what loads it connects to the server."""
        return MongoStore, (self.mongo.destination.url, self.mongo.destination.prefix), {"max_age_s": self.max_age_s}

    # ------------------------------------------------------------------ finding

    def _find(
        self, tree: Filter, sort: str | None, limit: int | None, columns: Sequence[str], offset: int = 0
    ) -> list[Run]:
        if offset:
            # Ids come from an index alone; fields are fetched of the runs that are wanted.
            before = self._find(tree, sort, None if limit is None else offset + limit, ())
            tree, offset = Condition("_id", "in", [id_of(run.id) for run in before[offset:]]), 0
        with self.mongo.errors():
            tree = self._words.replaced(tree)
        names = [full_name(name) for name in columns]
        by = full_name((sort or "id").removeprefix("-"))
        asked = {*names, *names_in(tree), by}
        with self.mongo.errors():
            computed = list(self._computed_here(asked, {*names_in(tree), by}))
            if not computed:
                return [*self._find_there(self._kept(), tree, sort, limit, asked)]
            # The others by a query, which an index answers, however many there are.
            found = self._find_there({"$nor": [IN_TRASH, *computed]}, tree, sort, limit, asked)
            found += self._find_here({"$nor": [IN_TRASH], "$or": computed}, tree, sort, limit, asked)
            return [*_in_order(found, sort)[:limit]]

    def _count(self, tree: Filter, limit: int | None) -> int:
        names = names_in(tree)
        with self.mongo.errors():
            tree = self._words.replaced(tree)
            computed = list(self._computed_here(names, names))
            query = self._query(tree, {"$nor": [IN_TRASH, *computed]} if computed else self._kept())
            most = math.inf if limit is None else limit
            if not query:
                return int(min(self.mongo.runs.estimated_document_count(), most))
            bound: dict[str, Any] = {} if limit is None else {"limit": limit}
            num = self.mongo.runs.count_documents(query, **bound)
            if computed and num < most:
                num += len(self._find_here({"$nor": [IN_TRASH], "$or": computed}, tree, None, None, names))
            return int(min(num, most))

    def _kept(self) -> Document:
        """Return a query for runs that are not in the trash: if that is empty, for all, which an index alone counts."""
        return {} if self.mongo.runs.find_one({"status": DISCARDED}, {"_id": 1}) is None else {"$nor": [IN_TRASH]}

    def _query(self, tree: Filter, among: Mapping[str, Any]) -> Document:
        """Return a filter as a query, among runs that another one finds."""
        query = query_of(tree, self._dead(), {one: self._found(one) for one in _patterns_in(tree)})
        return {"$and": [query, among]} if query and among else query or dict(among)

    def _computed_here(self, asked: set[str], judged: set[str]) -> Iterator[Document]:
        """Yield queries for the runs of which no query finds all that is asked for.

        Args:
            asked: All names of fields.
            judged: Those that the runs are chosen and sorted by.
        """
        if self._has_stock_runs and any(name.startswith("summary") for name in asked):
            yield {"uid": {"$not": {"$gt": ""}}}
        for name in sorted(filter(self._has_serialized, judged)):
            yield {f"{stored_path(name)}.dtype": {"$type": "string"}}
        if DURATION in judged:
            yield {"status": "RUNNING"}
        if "note" in judged:
            yield {OMNIBOARD_NOTES: {"$type": "string"}}

    def _find_there(
        self, among: Mapping[str, Any], tree: Filter, sort: str | None, limit: int | None, asked: set[str]
    ) -> list[MongoRun]:
        """Do as `_find` does, by queries.

        Args:
            among: Those that may be meant.
            tree, sort, limit: As asked for.
            asked: All names of fields.
        """
        by = full_name((sort or "id").removeprefix("-"))
        query = self._query(tree, among)
        if by == DURATION:
            return self._find_here(query, None, sort, limit, asked)
        projection = projection_of(sorted(asked))
        found: list[Document] = []
        for condition, path, direction in sort_stages(sort):
            left = 0 if limit is None else limit - len(found)
            if limit is None or left > 0:
                both = {"$and": [query, condition]} if condition and query else condition or query
                found += self._sorted(both, path, direction, left, projection)
        return [MongoRun(self, self.mongo, document["_id"], row_in(document, asked)) for document in found]

    def _sorted(
        self, query: Mapping[str, Any], path: str, direction: int, limit: int, projection: Mapping[str, int]
    ) -> list[Document]:
        """Return documents by one field, those of equal value by their ids.

        Of both at once MongoDB would have to sort all; of the one alone an index gives the first without the rest.
        """
        runs = self.mongo.runs
        found = list(runs.find(query, projection, batch_size=BATCH).sort(path, direction).limit(limit))
        if path == "_id" or not found:
            return found
        if limit and len(found) == limit:
            # Which of those equal to the last one came along was left to chance.
            last = value_at(found[-1], path)
            before = [document for document in found if plain(value_at(document, path)) != plain(last)]
            equal = {"$and": [query, {path: {"$eq": last}}]}
            found = before + list(runs.find(equal, projection).sort("_id", 1).limit(limit - len(before)))
        groups = itertools.groupby(found, lambda document: plain(value_at(document, path)))
        return [document for _, equals in groups for document in _sorted_by_id(equals)]

    @functools.cached_property
    def _has_stock_runs(self) -> bool:
        """True if there are runs without a uid, of which stock Sacred kept no summary."""
        with self.mongo.errors():
            with_uid = self.mongo.runs.count_documents({"uid": {"$gt": ""}})
            return self.mongo.runs.estimated_document_count() > with_uid + self.mongo.runs.count_documents(IN_TRASH)

    def _has_serialized(self, name: str) -> bool:
        """True if a run holds a NumPy number under a name as Sacred's serializer wrote it, which no query finds."""
        if name.partition(".")[0] not in _MAY_BE_SERIALIZED:
            return False
        return self.mongo.runs.find_one({f"{stored_path(name)}.dtype": {"$type": "string"}}, {"_id": 1}) is not None

    def _find_here(
        self, query: Mapping[str, Any], tree: Filter | None, sort: str | None, limit: int | None, asked: set[str]
    ) -> list[MongoRun]:
        """Do as `_find` does with what no query finds: durations, stock Sacred's summaries, serialized numbers.

        Args:
            query: Those that may be meant.
            tree: The filter, if the query does not stand for all of it.
            sort, limit: As asked for.
            asked: All names of fields.
        """
        names = sorted(asked | {"status"})
        computed = sorted(name for name in asked if name.startswith("summary"))
        metrics = {_metric_of(name) for name in computed}
        wanted = None if None in metrics else {metric for metric in metrics if metric is not None}
        runs: list[MongoRun] = []
        for document in self.mongo.runs.find(
            query, {**projection_of(names), "uid": 1}, sort=[("_id", 1)], batch_size=BATCH
        ):
            run = MongoRun(self, self.mongo, document["_id"], row_in(document, names))
            if computed and document.get("uid") is None:
                run.add_summary(run.computed_summary(wanted), computed)
            if tree is None or matches(tree, run.get):
                runs.append(run)
        return _in_order(runs, sort)[:limit]

    def _dead(self) -> list[Any]:
        """Return the ids of runs that say RUNNING and whose process is gone."""
        running = self.mongo.runs.find({"status": "RUNNING"}, dict.fromkeys(STATUS_FIELDS, 1))
        return [run["_id"] for run in running if true_status(run, run.get("lease")) == "DEAD"]

    def _found(self, pattern: Condition) -> list[Any]:
        """Return the `_id` of the runs that a regular expression finds."""
        if pattern.name == DURATION:
            return []
        path = stored_path(pattern.name)
        query = {} if path == "_id" else {path: {"$type": "string"}}
        values = ((document["_id"], value_at(document, path)) for document in self.mongo.runs.find(query, {path: 1}))
        found = ((key, str(key) if path == "_id" else value) for key, value in values)
        return [key for key, value in found if holds(pattern, value)]

    def _has_field(self, name: str) -> bool:
        with self.mongo.errors():
            if self.mongo.runs.find_one(exists(name), {"_id": 1}) is not None:
                return True
            if not name.startswith("summary.") or not self._has_stock_runs:
                return False
            # Named as the metric alone, its statistics are below it.
            ends = {_metric_of(name), name.removeprefix("summary.")} - {None}
            return self.mongo.metrics.find_one({"name": {"$in": sorted(map(str, ends))}}, {"_id": 1}) is not None

    def fields(self) -> list[str]:
        """See `Store.fields`."""
        with self.mongo.errors():
            left_out = {"captured_out": 0, "provenance.packages": 0}
            newest = self.mongo.runs.find({}, left_out, sort=[("$natural", -1)]).limit(_SAMPLE)
            names = {name for document in newest for name in _fields_of(plain(document))}
            if self._has_stock_runs:
                names |= {f"summary.{m}.{s}" for m in self.mongo.metrics.distinct("name") for s in STATISTICS}
        return sorted(names)

    def _run_of_id(self, key: str) -> Run | None:
        with self.mongo.errors():
            found = self.mongo.runs.find_one({"_id": {"$in": _ids_of(key)}, "$nor": [IN_TRASH]}, {"_id": 1})
        return MongoRun(self, self.mongo, found["_id"]) if found else None

    def get_all(self, keys: Iterable[str | int]) -> list[Run]:
        """See `Store.get_all`."""
        asked = list(dict.fromkeys(str(key).strip() for key in keys))
        with self.mongo.errors():
            wanted = {"_id": {"$in": list(itertools.chain(*map(_ids_of, asked)))}, "$nor": [IN_TRASH]}
            there = {str(found["_id"]): found["_id"] for found in self.mongo.runs.find(wanted, {"_id": 1})}
        runs = (MongoRun(self, self.mongo, there[key]) if key in there else self.get(key) for key in asked)
        return list(dict.fromkeys(runs))

    def prefetch(self, runs: Sequence[Run], names: Sequence[str]) -> None:
        """See `Store.prefetch`."""
        prefetch_from(self.mongo, [run for run in runs if isinstance(run, MongoRun)], names)

    def each_series(self, runs: Sequence[Run], metric: str) -> Iterator[tuple[Run, Series | None]]:
        """See `Store.each_series`."""
        yield from series_from(self.mongo, [run for run in runs if isinstance(run, MongoRun)], metric)

    def unreadable(self, max_age_s: float = 0.0) -> list[tuple[str, str]]:
        """See `Store.unreadable`; what is in a database is a document, but not always a run's."""
        wanted = {"status": "string", "config": "object", "info": "object"}
        odd: list[Document] = [{name: {"$exists": True, "$not": {"$type": kind}}} for name, kind in wanted.items()]
        query = {"$or": [*odd, {"status": {"$exists": False}}], "$nor": [IN_TRASH]}
        if time.monotonic() - self._judged_at > max_age_s:
            with self.mongo.errors():
                found = list(self.mongo.runs.find(query, dict.fromkeys(wanted, 1), sort=[("_id", 1)]))
            self._odd_runs = [(str(document["_id"]), "; ".join(_odd(document))) for document in found]
            self._judged_at = time.monotonic()
        return list(self._odd_runs)

    # ------------------------------------------------------------------ changing

    def artifacts(self) -> list[str]:
        """See `Store.artifacts`."""
        with self.mongo.errors():
            return sorted(map(str, self.mongo.collections.artifacts.distinct("name")))

    def artifact_versions(self, name: str) -> list[StoredArtifact]:
        """See `Store.artifact_versions`."""
        from runs.stores.mongo.artifacts import versions_in_database

        return versions_in_database(self.mongo, name)

    def _trash(self) -> list[tuple[Discarded, Any]]:
        with self.mongo.errors():
            return [(_discarded(document), document["_id"]) for document in Remover(self.mongo).trash()]

    def _restore(self, place: Any) -> str:
        with self.mongo.errors():
            Remover(self.mongo).restore(place)
        return str(place)

    def _reclaim(self, removed: Removed, grace_s: float, *, empties_trash: bool = False) -> None:
        with self.mongo.errors():
            remover = Remover(self.mongo)
            removed.runs += remover.empty_trash() if empties_trash else []
            remover.reclaim(removed, grace_s)

    def _add(self, staged: StagedRun) -> Copied:
        there = self._run_of_uid(staged.uid)
        if there is not None and there.status != COPYING:
            return Copied(there, is_new=False)
        left_out = (*staged.left_out, *unnamed_files(staged.folder), *changed_entries(staged.folder))
        key = deliver_whole(staged, self.mongo)
        return Copied(self.get(str(key)), is_new=True, left_out=left_out)

    def close(self) -> None:
        """Close the connection."""
        self.mongo.close()


def _ids_of(key: str) -> list[Any]:
    """Return each `_id` that a text may mean."""
    number = id_of(key)
    wanted: list[Any] = [key]
    if isinstance(number, int) and -(2**63) <= number < 2**63:
        wanted.append(number)
    if bson.ObjectId.is_valid(key):
        wanted.append(bson.ObjectId(key))
    return wanted


def _discarded(document: Document) -> Discarded:
    experiment, kept = document.get("experiment"), document[TRASH]
    name = experiment.get("name") if isinstance(experiment, Mapping) else None
    uid = kept.get("uid") if isinstance(kept.get("uid"), str) else None
    at = (kept["at"] if isinstance(kept.get("at"), datetime) else datetime(1970, 1, 1)).replace(tzinfo=UTC)
    status = true_status(kept, kept.get("lease"))
    return Discarded(str(document["_id"]), uid, str(name or ""), str(status or ""), at)


def _patterns_in(tree: Filter) -> set[Condition]:
    """Return the conditions that are regular expressions."""
    if isinstance(tree, Condition):
        return {tree} if tree.operator == "~" else set()
    if isinstance(tree, Words):
        return set()
    return set().union(*map(_patterns_in, (tree.part,) if isinstance(tree, Not) else tree.parts))


def _in_order(runs: Sequence[MongoRun], sort: str | None) -> list[MongoRun]:
    """Return runs in the order that is asked for; those of equal value by their ids."""
    name, descending = (sort or "id").removeprefix("-"), bool(sort and sort.startswith("-"))
    by_id = sorted(runs, key=lambda run: _order_of_id(run.key), reverse=descending and full_name(name) == "_id")
    return by_id if full_name(name) == "_id" else in_order(by_id, lambda run: run.get(name), descending=descending)


def _order_of_id(key: Any) -> Any:
    # Ids of different kinds, such as numbers and texts, cannot be compared.
    return str(type(key)), key


def _sorted_by_id(documents: Iterable[Document]) -> list[Document]:
    return sorted(documents, key=lambda document: _order_of_id(document["_id"]))


def _odd(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of a run's document is not as it should be."""
    for name, kind in {"status": str, "config": Mapping, "info": Mapping}.items():
        if name not in document:
            if name == "status":
                yield "it has no status: this is not a run"
        elif not isinstance(document[name], kind):
            yield f"{name}: got {type(document[name]).__name__}, expected {'text' if kind is str else 'an object'}"


def _fields_of(document: Document) -> set[str]:
    """Return the full names of a document's fields."""
    summary, info = document.pop("summary", None), document.get("info")
    listed = info.get("metrics") if isinstance(info, Mapping) else None
    metrics = [entry.get("name") for entry in listed or () if isinstance(entry, Mapping)]
    names = {stored_key(name): name for name in metrics if isinstance(name, str)}
    found: Document = {}
    if "result" in document:
        document["result"] = without_pickles(document["result"], twice=True)
    flatten(document, "", found, LEFT_OUT)
    if duration_s(document) is not None:
        found[DURATION] = None
    keys = summary if isinstance(summary, Mapping) else {}
    return found.keys() | {f"summary.{names.get(key, key)}.{each}" for key in keys for each in STATISTICS}


def _metric_of(name: str) -> str | None:
    """Return the metric that a full name such as `summary.val/loss.min` is of; None if it is of all."""
    return name.removeprefix("summary").removeprefix(".").rpartition(".")[0] or None
