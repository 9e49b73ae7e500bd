"""Runs in a MongoDB database, ours and those of Sacred's MongoObserver."""

from __future__ import annotations

import contextlib
import functools
import itertools
import mimetypes
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO

import bson
import gridfs
import numpy as np
import pymongo
from pymongo.errors import ConfigurationError, PyMongoError

from observers.artifact_fetch import fetch
from observers.artifact_version import ArtifactError
from observers.artifacts import ARTIFACTS
from observers.destination import Destination, explain
from observers.documents import object_id, restore
from observers.schema import POINT, Series, summarize
from runs.content import Content, missing_content
from runs.errors import StoreError
from runs.fields import LEFT_OUT, flatten
from runs.filters import Filter, in_order, matches, names_in, parse_filter
from runs.folder_store import series_of
from runs.folders import true_status
from runs.media import Medium
from runs.mongo_filters import query_of, sort_stages, stored_path
from runs.mongo_removing import Remover
from runs.names import STATISTICS, full_name
from runs.run import Run, without_pickles
from runs.store import DEFAULT_COLUMNS, NEWEST_FIRST, Store

if TYPE_CHECKING:
    from pathlib import Path

    from observers.artifact_version import ArtifactVersion
    from runs.removing import Removed

__all__ = ["MongoRun", "MongoStore"]

_PARTS = ("config", "info", "summary", "provenance", "captured_out")
# What an entry of media has only here.
_OF_MEDIA = ("_id", "run_id", "uid", "file_id", "images", "number")
# What stands in `captured_out` for the middle of a long output; see `observers.delivery`.
_GAP = re.compile(rb"\n\.\.\. (?P<count>\d+) bytes left out here; [^\n]*\.\.\.\n")
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
        start = f"{prefix}_" if prefix else ""
        self.runs = self.database[f"{start}runs"]
        self.metrics = self.database[f"{start}metrics"]
        self.chunks = self.database[f"{start}metrics_chunks"]
        self.media = self.database[f"{start}media"]
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

    def _write_notes(self, run: Run, tags: Mapping[str, bool], note: str) -> None:
        with self.errors():
            self.runs.update_one({"_id": run.key}, {"$set": {"tags": dict(tags), "note": note}})

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


class MongoRun(Run):
    """A run in a database.

    Attributes:
        key: Its `_id`.
    """

    store: MongoStore

    def __init__(self, store: MongoStore, key: Any, row: Mapping[str, Any] | None = None) -> None:
        super().__init__(store, str(key), row)
        self.key = key
        self._parts: dict[str, Any] = {}

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        """See `Run.document`."""
        return without_pickles(plain(self._whole(self._find(dict.fromkeys(_PARTS, 0)))))

    def _whole(self, value: Any) -> Any:
        """Return a value with what is too large for a document put back in its place."""
        return restore(value, lambda key: self._content("a large entry", key).read())

    def _whole_list(self, document: Mapping[str, Any], name: str) -> list[Any]:
        """Return a list of the document, all of it where it was cut off."""
        value = document.get(f"{name}_file") or document.get(name)
        value = self._whole(value) if isinstance(value, Mapping) else value
        return value if isinstance(value, list) else []

    def _find(self, projection: Mapping[str, int]) -> dict[str, Any]:
        with self.store.errors():
            found = self.store.runs.find_one({"_id": self.key}, projection)
        if found is None:
            raise StoreError(f"run {self.id} is no longer in {self.store.where}")
        return found

    def _part(self, name: str) -> dict[str, Any]:
        if name not in self._parts:
            part = self._whole(self._find({name: 1}).get(name))
            self._parts[name] = without_pickles(plain(part)) if isinstance(part, Mapping) else {}
        if name == "summary" and not self._parts[name]:
            self._parts[name] = self.computed_summary()
        return self._parts[name]

    def computed_summary(self, names: set[str] | None = None) -> dict[str, Any]:
        """Return the summary of what stock Sacred recorded, which keeps none; of all metrics, or of `names`."""
        query = {"run_id": self.key, **({"name": {"$in": sorted(names)}} if names is not None else {})}
        found = {}
        with self.store.errors():
            for document in self.store.metrics.find(query, {"name": 1, "steps": 1, "values": 1}):
                series = series_of(document, None)
                if series is not None and len(series):
                    found[document["name"]] = summarize(series.values, series.steps)
        return found

    def add_summary(self, summary: dict[str, Any], names: Iterable[str]) -> None:
        """Let `names` of the summary come from `summary`."""
        for name in names:
            if name == "summary":
                self._row[name] = summary
            elif name.startswith("summary."):
                metric, _, statistic = name.removeprefix("summary.").rpartition(".")
                self._row[name] = summary.get(metric, {}).get(statistic)

    @property
    def status(self) -> str:
        """See `Run.status`."""
        if self._row.get("status"):
            return self._row["status"]
        # Not from the whole document, of which something may be gone.
        found = plain(self._find({"status": 1, "lease": 1}))
        return true_status(found, found.get("lease"))

    def _metric_names(self) -> list[str]:
        with self.store.errors():
            return self.store.metrics.distinct("name", {"run_id": self.key})

    def _series(self, name: str) -> Series | None:
        query = {"run_id": self.key, "name": name}
        with self.store.errors():
            document = self.store.metrics.find_one(query)
            chunks = list(self.store.chunks.find(query, {"data": 1}, sort=[("index", 1)]))
        if document is None:
            return None
        start = self._find({"start_time": 1}).get("start_time")
        series = series_of(document, start if isinstance(start, datetime) else self.start_time)
        if series is None or not chunks:
            return series
        points = np.concatenate([np.frombuffer(chunk["data"], POINT) for chunk in chunks])
        return joined(series, points)

    def read_output(self, start: int = 0) -> tuple[bytes, int]:
        """See `Run.read_output`."""
        found = self._find({"captured_out": 1, "captured_out_file": 1})
        if found.get("captured_out_file") is not None:
            with self._content("captured output", found["captured_out_file"]).open() as stream, self.store.errors():
                stream.seek(start)
                data = stream.read()
                return data, start + len(data)
        data = str(found.get("captured_out") or "").encode("utf-8", "replace")
        match = _GAP.search(data)
        if match is None:
            return data[start:], max(start, len(data))
        # Where the tail begins in the whole output.
        tail = match.start() + int(match["count"])
        if start <= match.start():
            return data[start:], tail + len(data) - match.end()
        missed = b"\n... %d bytes left out here ...\n" % (tail - start) if start < tail else b""
        return missed + data[match.end() + max(0, start - tail) :], tail + len(data) - match.end()

    @property
    def artifacts(self) -> dict[str, Content]:
        """See `Run.artifacts`."""
        entries = self._whole_list(self._find({"artifacts": 1, "artifacts_file": 1}), "artifacts")
        return {
            str(entry.get("name")): self._content(str(entry.get("name")), entry.get("file_id"))
            for entry in entries
            if isinstance(entry, Mapping)
        }

    @property
    def lease(self) -> dict[str, Any] | None:
        """See `Run.lease`."""
        lease = self._find({"lease": 1}).get("lease")
        return plain(lease) if isinstance(lease, Mapping) else None

    @property
    def media(self) -> list[Medium]:
        """See `Run.media`."""
        with self.store.errors():
            entries = list(self.store.media.find({"run_id": self.key}, sort=[("number", 1)]))
        return [self._medium(self._whole(entry)) for entry in entries]

    def _medium(self, entry: dict[str, Any]) -> Medium:
        files = [image for image in entry.get("images") or () if isinstance(image, Mapping)]
        names = [str(image.get("file")).rpartition("/")[2] for image in files]
        images = {name: self._content(name, image.get("file_id")) for name, image in zip(names, files, strict=True)}
        content = self._content(str(entry.get("file")), entry.get("file_id"))
        fields = {key: plain(entry.get(key)) for key in ("name", "kind", "step", "content_type", "meta")}
        return Medium(**fields, time_s=plain(entry.get("time")), content=content, images=images)

    def stored(self, kind: str) -> list[Content]:
        """See `Run.stored`."""
        start = "experiment." if kind == "sources" else ""
        found: Any = self._find({f"{start}{kind}": 1, f"{start}{kind}_file": 1})
        found = found.get("experiment") if kind == "sources" else found
        pairs = self._whole_list(found, kind) if isinstance(found, Mapping) else []
        pairs = [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2]
        return [self._content(str(name), key) for name, key in pairs]

    def media_entries(self) -> list[tuple[dict[str, Any], list[Content]]]:
        """See `Run.media_entries`."""
        with self.store.errors():
            found = {document["_id"]: document for document in self.store.media.find({"run_id": self.key})}
        # Their ids tell their places in the run's folder.
        places = {object_id(str(self.uid), "media", number): number for number in range(len(found))}
        entries = []
        for key in sorted(found, key=lambda key: found[key].get("number", places.get(key, len(found)))):
            images = [image for image in found[key].get("images", ()) if isinstance(image, Mapping)]
            pairs = [(found[key].get("file"), found[key].get("file_id"))]
            pairs += [(image.get("file"), image.get("file_id")) for image in images]
            own = {n: v for n, v in found[key].items() if n not in _OF_MEDIA}
            entry = plain(self._whole(own)) | ({"images": [image.get("file") for image in images]} if images else {})
            contents = [self._content(str(file).rpartition("/")[2], file_id) for file, file_id in pairs]
            entries.append((entry, contents))
        return entries

    def artifact_details(self) -> dict[str, dict[str, Any]]:
        """See `Run.artifact_details`."""
        listed = self._whole_list(self._find({"artifacts": 1, "artifacts_file": 1}), "artifacts")
        details = {}
        for entry in listed:
            key = entry.get("file_id") if isinstance(entry, Mapping) else None
            key = bson.ObjectId(key) if isinstance(key, str) and bson.ObjectId.is_valid(key) else key
            with self.store.errors():
                file = self.store.database.fs.files.find_one({"_id": key}) if key is not None else None
            if file is None:
                continue
            one: dict[str, Any] = {"metadata": plain(self._whole(file.get("metadata")))}
            kind = file.get("contentType")
            if kind != mimetypes.guess_type(str(entry.get("name")))[0]:
                one["content_type"] = kind
            if any(one.values()):
                details[str(entry.get("name"))] = one
        return details

    def odd_values(self) -> bytes:
        """See `Run.odd_values`."""
        key = self._find({"values_file": 1}).get("values_file")
        return b"" if key is None else self._content("values.jsonl", key).read()

    def fetch_version(self, entry: Mapping[str, Any], into: Path) -> ArtifactVersion:
        """See `Run.fetch_version`."""
        reference = f"{entry['name']}@{entry['digest']}"
        prefix = self.store.runs.name.removesuffix("runs")
        with self.store.errors():
            version = fetch(self.store.database, prefix, reference, into / ARTIFACTS)
        if version is None:
            raise ArtifactError(f"{reference}: the database does not have it")
        return version

    def _content(self, name: str, key: Any) -> Content:
        if key is None:
            return missing_content(name, "the record names no file")

        if isinstance(key, str) and bson.ObjectId.is_valid(key):  # as JSON holds it
            key = bson.ObjectId(key)

        def open_() -> BinaryIO:
            with self.store.errors():
                try:
                    return self.store.fs.get(key)
                except gridfs.errors.NoFile as error:
                    raise StoreError(f"{name!r} of run {self.id} is not in the database") from error

        return Content(name, open_)


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


def joined(series: Series, points: np.ndarray) -> Series:
    """Return a series with further points behind it."""
    if series.steps.dtype == np.float64:
        steps = np.concatenate([series.steps, points["step"].copy().view("<f8")])
    else:
        steps = np.concatenate([series.steps, points["step"]])
    values = np.concatenate([series.values, points["value"]])
    return Series(steps, values, np.concatenate([series.times, points["time"] / 100]))


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


def plain(value: Any) -> Any:
    """Return what BSON holds as what JSON holds: times in ISO form, other kinds as text."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return int(value)  # Int64
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bson.Decimal128):
        return float(value.to_decimal())
    return str(value)
