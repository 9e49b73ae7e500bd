"""Runs in a MongoDB database, ours and those of Sacred's MongoObserver."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import bson
import gridfs
import pymongo
from pymongo.errors import ConfigurationError, PyMongoError

from observers.mongo.collections import Collections
from observers.mongo.destination import Destination, explain
from runs.errors import StoreError
from runs.index.fields import LEFT_OUT, flatten
from runs.index.folders import true_status
from runs.query.filters import Filter, in_order, matches, names_in, parse_filter
from runs.query.names import STATISTICS, full_name
from runs.stores.mongo_filters import query_of, sort_stages, stored_path
from runs.stores.mongo_removing import Remover
from runs.stores.mongo_run import MongoRun, plain
from runs.stores.run import Run
from runs.stores.store import DEFAULT_COLUMNS, NEWEST_FIRST, Store

if TYPE_CHECKING:
    from runs.stores.removing import Removed

__all__ = ["MongoStore"]

# How many runs tell which fields there are.
_SAMPLE = 200


class MongoStore(Store):
    """All runs of a database.

    Raises:
        StoreError: If the server cannot be reached or refuses.
    """

    def __init__(self, url: str, prefix: str = "") -> None:
        try:
            name = pymongo.uri_parser.parse_uri(url)["database"] or "sacred"
            destination = Destination(url, name, prefix)
            self._client = destination.connect()
        except (ConfigurationError, pymongo.errors.InvalidURI, ValueError) as error:
            raise StoreError(f"the store's URL: {explain(error)}") from error
        self.where = f"{destination.label}#{prefix}" if prefix else destination.label
        self.database = self._client[name]
        self.collections = Collections(self.database, prefix)
        self.runs, self.metrics = self.collections.runs, self.collections.metrics
        self.chunks, self.media = self.collections.chunks, self.collections.media
        self.fs = gridfs.GridFS(self.database)
        try:
            with self.errors():
                self.runs.find_one({}, {"_id": 1})
        except StoreError:
            self._client.close()
            raise

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what goes wrong with the server into a StoreError."""
        try:
            yield
        except PyMongoError as error:
            raise StoreError(f"MongoDB at {self.where}: {explain(error)}") from error

    def find(
        self,
        filter: Any = None,
        sort: str | None = NEWEST_FIRST,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[Run]:
        """See `Store.find`."""
        tree = parse_filter(filter)
        names = [full_name(name) for name in (DEFAULT_COLUMNS if columns is None else columns)]
        asked = {*names, *names_in(tree), full_name((sort or "id").removeprefix("-"))}
        if self._has_stock_runs and any(name.startswith("summary") for name in asked):
            with self.errors():
                return self._find_here(tree, sort, limit, names, asked)
        projection = _projection([*names, full_name((sort or "id").removeprefix("-"))])
        found: list[dict[str, Any]] = []
        with self.errors():
            query = query_of(tree, self._dead())
            for condition, path, direction in sort_stages(sort):
                left = 0 if limit is None else limit - len(found)
                if limit is None or left > 0:
                    both = {"$and": [query, condition]} if condition and query else condition or query
                    found += self._sorted(both, path, direction, left, projection)
        return [MongoRun(self, document["_id"], self._row(document, names)) for document in found]

    def _sorted(
        self, query: dict[str, Any], path: str, direction: int, limit: int, projection: dict[str, int]
    ) -> list[dict[str, Any]]:
        """Return documents by one field, those of equal value by their ids.

        Of both at once MongoDB would have to sort all; of the one alone an index gives the first without the rest.
        """
        found = list(self.runs.find(query, projection).sort(path, direction).limit(limit))
        if path == "_id" or not found:
            return found
        if limit and len(found) == limit:
            # Which of those equal to the last one came along was left to chance.
            last = _value_at(found[-1], path)
            before = [document for document in found if _value_at(document, path) != last]
            equal = {"$and": [query, {path: {"$eq": last}}]}
            found = before + list(self.runs.find(equal, projection).sort("_id", 1).limit(limit - len(before)))
        return [one for _, same in itertools.groupby(found, lambda one: _value_at(one, path)) for one in _by_id(same)]

    @functools.cached_property
    def _has_stock_runs(self) -> bool:
        """Whether there are runs without a uid, of which stock Sacred kept no summary."""
        with self.errors():
            return self.runs.estimated_document_count() > self.runs.count_documents({"uid": {"$gt": ""}})

    def _find_here(
        self, tree: Filter, sort: str | None, limit: int | None, names: list[str], asked: set[str]
    ) -> list[Run]:
        """Do as `find` does, with the summaries of stock Sacred's runs, which are computed from their metrics."""
        runs = []
        for document in self.runs.find({}, {**_projection([*asked, "status"]), "uid": 1}, sort=[("_id", 1)]):
            run = MongoRun(self, document["_id"], self._row(document, sorted(asked | {"status"})))
            if document.get("uid") is None:
                wanted = {metric_of(name) for name in asked if name.startswith("summary")}
                run.add_summary(run.computed_summary(None if None in wanted else wanted), asked)
            if matches(tree, run.__getitem__):
                runs.append(run)
        if sort:
            name, descending = sort.removeprefix("-"), sort.startswith("-")
            if full_name(name) == "_id":
                runs = runs[::-1] if descending else runs
            else:
                runs = in_order(runs, lambda run: run[name], descending=descending)
        return runs[:limit]

    def _row(self, document: dict[str, Any], names: list[str]) -> dict[str, Any]:
        row = {name: plain(_value_at(document, stored_path(name))) for name in names if name != "_id"}
        if "status" in row:
            row["status"] = true_status({"status": row["status"]}, document.get("lease"))
        return row

    def _dead(self) -> list[Any]:
        """Return the ids of runs that say RUNNING and whose process is gone."""
        running = self.runs.find({"status": "RUNNING", "lease": {"$exists": True}}, {"status": 1, "lease": 1})
        return [run["_id"] for run in running if true_status(run, run["lease"]) == "DEAD"]

    def _by_id(self, key: str) -> Run | None:
        wanted: list[Any] = [key]
        with contextlib.suppress(ValueError):
            wanted.append(int(key))
        if bson.ObjectId.is_valid(key):
            wanted.append(bson.ObjectId(key))
        wanted = [one for one in wanted if not isinstance(one, int) or -(2**63) <= one < 2**63]
        with self.errors():
            found = self.runs.find_one({"_id": {"$in": wanted}}, {"_id": 1})
        return MongoRun(self, found["_id"]) if found else None

    def unreadable(self) -> list[tuple[str, str]]:
        """See `Store.unreadable`; what is in a database is a document, but not always a run's."""
        wanted = {"status": "string", "config": "object", "info": "object"}
        odd = [{name: {"$exists": True, "$not": {"$type": kind}}} for name, kind in wanted.items()]
        query = {"$or": [*odd, {"status": {"$exists": False}}]}
        with self.errors():
            found = list(self.runs.find(query, dict.fromkeys(wanted, 1), sort=[("_id", 1)]))
        kinds = {"status": str, "config": Mapping, "info": Mapping}
        return [(str(document["_id"]), "; ".join(_odd(document, kinds))) for document in found]

    def fields(self) -> list[str]:
        """See `Store.fields`."""
        with self.errors():
            newest = self.runs.find({}, {"captured_out": 0, "provenance.packages": 0}, sort=[("$natural", -1)])
            names: set[str] = set()
            for document in newest.limit(_SAMPLE):
                names |= _fields_of(plain(document))
            if self._has_stock_runs:
                names |= {f"summary.{m}.{s}" for m in self.metrics.distinct("name") for s in STATISTICS}
        return sorted(names)

    def _write_notes(self, run: Run, notes: Mapping[str, Any]) -> None:
        with self.errors():
            self.runs.update_one({"_id": run.key}, {"$set": dict(notes)})

    def remove_run(self, run: Run) -> None:
        """See `Store.remove_run`."""
        with self.errors():
            Remover(self).remove(run.key)

    def reclaim(self, removed: Removed, grace_s: float) -> None:
        """See `Store.reclaim`."""
        with self.errors():
            Remover(self).reclaim(removed, grace_s)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _by_id(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    # Ids of different kinds, such as numbers and texts, cannot be compared.
    return sorted(documents, key=lambda document: (str(type(document["_id"])), document["_id"]))


def _odd(document: Mapping[str, Any], kinds: Mapping[str, type]) -> Iterator[str]:
    """Yield what of a run's document is not as it should be."""
    for name, kind in kinds.items():
        if name not in document:
            if name == "status":
                yield "it has no status: this is no run"
        elif not isinstance(document[name], kind):
            yield f"{name}: got {type(document[name]).__name__}, expected {'text' if kind is str else 'an object'}"


def _fields_of(document: dict[str, Any]) -> set[str]:
    """Return the full names of a document's fields."""
    metrics = document.pop("summary", None)
    found: dict[str, Any] = {}
    flatten(document, "", found, LEFT_OUT)
    # Names of metrics have no dots here.
    metrics = metrics if isinstance(metrics, Mapping) else {}
    return found.keys() | {f"summary.{name.replace(',', '.')}.{each}" for name in metrics for each in STATISTICS}


def metric_of(name: str) -> str | None:
    """Return the metric that a full name such as `summary.val/loss.min` is of; None if it is of all."""
    return name.removeprefix("summary").removeprefix(".").rpartition(".")[0] or None


def _projection(names: Sequence[str]) -> dict[str, int]:
    """Return what to fetch for `names`; a path and one below it would collide."""
    paths = sorted({stored_path(name) for name in names} | ({"lease"} if "status" in names else set()))
    kept: list[str] = []
    for path in paths:
        if not any(path == other or path.startswith(f"{other}.") for other in kept):
            kept.append(path)
    return dict.fromkeys(kept or ["_id"], 1)


def _value_at(document: Any, path: str) -> Any:
    for key in path.split("."):
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document
