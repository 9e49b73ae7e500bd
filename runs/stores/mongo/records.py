"""Records of runs in a MongoDB database, made by the lab or by stock Sacred."""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson

from sacristan.configs.map import value_at
from sacristan.observers.artifacts import ArtifactVersion
from sacristan.observers.artifacts.store import ARTIFACTS
from sacristan.observers.errors import ArtifactError
from sacristan.observers.mongo.aliases import fetch
from sacristan.observers.mongo.documents import exact_part, exact_time, files_in, object_id, restore, stored_key
from sacristan.observers.record.identity import true_status
from sacristan.observers.record.points import summarize
from sacristan.observers.record.schema import RANKS_FOLDER, newer_format
from sacristan.runs.errors import RemovedError, StoreError
from sacristan.runs.query import list_of, mapping_of, mappings_in, time_of, to_the_millisecond
from sacristan.runs.stores import PARTS, Backend, Content, StoredArtifact, StoredRun, missing_content
from sacristan.runs.stores.mongo.database import Document, MongoDatabase
from sacristan.runs.stores.mongo.queries import (
    STATUS_FIELDS,
    as_recorded,
    from_bson,
    has_changed_keys,
    note_in,
    tags_in,
    with_dots,
)
from sacristan.runs.stores.series import other_values, series_of

# The fields of a metric that hold its points.
SERIES_FIELDS = ("run_id", "steps", "values", "timestamps")
_NOT_IN_DOCUMENT = ("config", "info", "summary", "provenance", "captured_out")
# Fields of a stored medium that its record lacks, and fields that every record has.
_OF_MEDIA = ("_id", "run_id", "uid", "file_id", "images", "number")
_OF_MEDIUM = ("name", "kind", "step", "content_type", "meta")
# The line in `captured_out` that replaces the middle of a long output; see `sacristan.observers.mongo.delivery`.
_GAP = re.compile(rb"\n\.\.\. (?P<count>\d+) bytes left out here; [^\n]*\.\.\.\n")


class MongoRecords(Backend):
    """The part of the store that reads records in a database; a run's `key` is its `_id`."""

    mongo: MongoDatabase

    # ------------------------------------------------------------------ the document

    def _find(self, run: StoredRun, projection: Mapping[str, int]) -> Document:
        wanted = {**projection, "format": 1} if all(projection.values()) else projection
        with self.mongo.errors():
            document = self.mongo.runs.find_one({"_id": run.key}, wanted)
        if document is None:
            raise RemovedError(f"run {run.id} is no longer in {self.where}")
        if newer := newer_format(document):
            raise StoreError(f"run {run.id} of {self.where} cannot be read: {newer}")
        return document

    def _nothing(self, run: StoredRun) -> list[Any]:
        """Return an empty list, or raise a StoreError if the run is gone."""
        self._find(run, {"_id": 1})
        return []

    def part(self, run: StoredRun, name: str, entries: Sequence[str] | None = None) -> Any:
        if name in PARTS:
            if entries and not any("." in entry or entry.startswith("$") for entry in entries):
                document = self._find(run, {f"exact.{name}": 1, **{f"{name}.{entry}": 1 for entry in entries}})
                if mapping_of(document.get("exact")).get(name) is None:
                    return as_recorded(self._whole(run, mapping_of(document.get(name))))
            part = self.mapping_in(run, name, self._find(run, dict.fromkeys(fields_of_part(name), 1)))
            if name != "summary":
                return part
            named = as_named(part, self._metrics(run)) if has_changed_keys(part) else part
            return named or self.computed_summary(run.key)
        return _READERS[name](self, run)

    def _document(self, run: StoredRun) -> Document:
        stored = self._find(run, dict.fromkeys(_NOT_IN_DOCUMENT, 0))
        exact, times = stored.pop("exact", None), stored.pop("microseconds", None)
        stored |= self.exact_entries(run, stored, exact)
        for name, text in mapping_of(times).items():
            stored[name] = exact_time(stored.get(name), text)
        document = as_recorded(self._whole(run, stored), twice=True)
        notes = {"tags": tags_in(document), "note": note_in(document)}
        return {**document, **{name: value for name, value in notes.items() if value is not None}}

    def exact_entries(self, run: StoredRun, document: Mapping[str, Any], exact: Any) -> Document:
        """Return the original form of the entries that MongoDB cannot hold as recorded."""
        part = mapping_of(exact).get("run")
        recorded = mapping_of(None if part is None else self._whole(run, part))
        return {
            key: exact_part({"": document[key]}, {"": value}, str(document.get("uid")))[""]
            for key, value in recorded.items()
            if key in document
        }

    def _whole(self, run: StoredRun, value: Any) -> Any:
        """Return a value with its large entries read from their files; a missing or invalid file is a StoreError."""
        # A large mapping may have a thousand files.
        contents = self.mongo.contents(keys) if len(keys := list(files_in(value))) > 1 else {}

        def read(key: Any) -> bytes:
            return contents[key] if key in contents else self._content(run, "a large entry", key).read()

        try:
            return restore(value, read)
        except ValueError as error:
            raise StoreError(f"a large entry of run {run.id} is not JSON ({error})") from error

    def _entries(self, run: StoredRun, name: str) -> list[Any]:
        """Return a list in the document, or from the file if it was too long for that."""
        document = self._find(run, {name: 1, f"{name}_file": 1})
        value = value_at(document, f"{name}_file") or value_at(document, name)
        return list_of(self._whole(run, value) if isinstance(value, Mapping) else value)

    # ------------------------------------------------------------------ mappings, status, lease

    def mapping_in(self, run: StoredRun, name: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return one of `PARTS` in a document with `fields_of_part(name)`; a summary by the database's keys."""
        part, exact = document.get(name), document.get("exact")
        if isinstance(exact, Mapping) and name in exact:
            part = exact_part(part, self._whole(run, exact[name]), str(document.get("uid")))
        part = self._whole(run, part)
        if name == "provenance" and isinstance(part, dict):
            part |= {key: with_dots(part[key]) for key in ("packages", "libraries") if key in part}
        if not isinstance(part, Mapping | None):
            raise StoreError(
                f"{name} of run {run.id} holds {type(part).__name__}, expected an object; "
                "the rest of the run may still be read"
            )
        return as_recorded(part or {})

    def computed_summary(self, key: Any, names: set[str] | None = None) -> dict[str, Any]:
        """Compute the statistics of some or all metrics, which stock Sacred does not record."""
        query = {"run_id": key, **({"name": {"$in": sorted(names)}} if names is not None else {})}
        summary = {}
        with self.mongo.errors():
            for document in self.mongo.metrics.find(query, {"name": 1, "steps": 1, "values": 1}):
                series = series_of(document, None)
                if series is not None and len(series):
                    summary[document["name"]] = summarize(series.values, series.steps)
        return summary

    def _status(self, run: StoredRun) -> str:
        # Not from the whole document, parts of which may be gone.
        document = from_bson(self._find(run, dict.fromkeys(STATUS_FIELDS, 1)))
        return true_status(document, document.get("lease")) or ""

    def _lease(self, run: StoredRun) -> dict[str, Any] | None:
        lease = self._find(run, {"lease": 1}).get("lease")
        return from_bson(lease) if isinstance(lease, Mapping) else None

    def _metrics(self, run: StoredRun) -> list[str]:
        with self.mongo.errors():
            names = self.mongo.metrics.distinct("name", {"run_id": run.key})
        names = [name for name in names if isinstance(name, str)]  # documents of others may have anything there
        return names or self._nothing(run)

    def _values(self, run: StoredRun) -> bytes:
        found = self._find(run, {"values_file": 1, "format": 1})
        if key := found.get("values_file"):
            return self._content(run, "values.jsonl", key).read()
        if str(found.get("format")).startswith("sacristan"):
            return b""
        with self.mongo.errors():
            documents = self.mongo.metrics.find({"run_id": run.key}, ("name", *SERIES_FIELDS))
            metrics = {str(document.get("name")): from_bson(document) for document in documents}
        return other_values(metrics, start_of(run))

    # ------------------------------------------------------------------ output and files

    def output(self, run: StoredRun, start: int, max_bytes: int | None) -> tuple[bytes, int]:
        document = self._find(run, {"captured_out": 1, "captured_out_file": 1})
        if document.get("captured_out_file") is not None:
            content = self._content(run, "captured output", document["captured_out_file"])
            with content.open() as stream, self.mongo.errors():
                start = max(stream.seek(0, os.SEEK_END) + start, 0) if start < 0 else start
                stream.seek(start)
                data = stream.read(-1 if max_bytes is None else max_bytes)
                return data, start + len(data)
        data, end = _output_from(str(document.get("captured_out") or ""), max(start, 0))
        data = data[start:] if start < 0 else data
        if max_bytes is not None and len(data) > max_bytes:
            end -= len(data) - max_bytes
            data = data[:max_bytes]
        return data, end

    def files(self, run: StoredRun, kind: str) -> list[Content]:
        if kind in ("sources", "resources"):
            entries = self._entries(run, "experiment.sources" if kind == "sources" else kind)
            pairs = (pair for pair in entries if isinstance(pair, list) and len(pair) == 2)
            return [self._content(run, str(name), key) for name, key in pairs]
        if kind == "ranks":
            ranks = mappings_in(self._find(run, {"rank_outputs": 1}).get("rank_outputs"))
            named = [(f"{RANKS_FOLDER}/{one['rank']}.txt", one) for one in ranks if isinstance(one.get("rank"), int)]
        else:
            named = [(str(entry.get("name")), entry) for entry in mappings_in(self._entries(run, kind))]
        return [self._content(run, name, entry.get("file_id")) for name, entry in named]

    def media(self, run: StoredRun, *, skips_damaged: bool = False) -> list[tuple[dict[str, Any], list[Content]]]:
        with self.mongo.errors():
            documents = list(self.mongo.media.find({"run_id": run.key})) or self._nothing(run)
        # An `_id` tells the medium's position in the run's folder.
        uid = str(run.get("uid"))
        positions = {object_id(uid, "media", number): number for number in range(len(documents))}
        last = len(documents)

        def position(document: Mapping[str, Any]) -> float:
            number = document.get("number")  # of any type, if others wrote it
            return number if isinstance(number, int | float) else positions.get(document["_id"], last)

        blank = dict.fromkeys(_OF_MEDIUM) if skips_damaged else {}
        return [self._medium(run, document, blank) for document in sorted(documents, key=position)]

    def _medium(
        self, run: StoredRun, document: Document, blank: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[Content]]:
        images = mappings_in(document.get("images"))
        entry = from_bson(self._whole(run, {key: value for key, value in document.items() if key not in _OF_MEDIA}))
        entry |= {"images": [image.get("file") for image in images]} if images else {}
        files = [self._content(run, str(file.get("file")), file.get("file_id")) for file in (document, *images)]
        return {**blank, **entry}, files

    def _artifact_details(self, run: StoredRun) -> dict[str, dict[str, Any]]:
        details: dict[str, dict[str, Any]] = {}
        for entry in mappings_in(self._entries(run, "artifacts")):
            key = _object_id(entry.get("file_id"))
            with self.mongo.errors():
                file = self.mongo.database.fs.files.find_one({"_id": key}) if key is not None else None
            if file is not None:
                name, content_type = str(entry.get("name")), file.get("contentType")
                detail: dict[str, Any] = {"metadata": from_bson(self._whole(run, file.get("metadata")))}
                if content_type != mimetypes.guess_type(name)[0]:
                    detail["content_type"] = content_type
                details |= {name: detail} if any(detail.values()) else {}
        return details

    def _content(self, run: StoredRun, name: str, key: Any) -> Content:
        if key is None:
            return missing_content(name, "the record names no file")
        key = _object_id(key)

        def find_md5() -> str | None:
            with self.mongo.errors():
                recorded_md5 = (self.mongo.database.fs.files.find_one({"_id": key}, {"md5": 1}) or {}).get("md5")
            return recorded_md5 if isinstance(recorded_md5, str) else None

        return Content(name, lambda: self.mongo.open_file(key, f"{name!r} of run {run.id}"), find_md5=find_md5)

    # ------------------------------------------------------------------ versions of artifacts

    def artifacts(self) -> list[str]:
        with self.mongo.errors():
            return sorted(map(str, self.mongo.collections.artifacts.distinct("name")))

    def artifact_versions(self, name: str, version: int | None = None) -> list[StoredArtifact]:
        wanted = {"name": name, "removing": {"$exists": False}} | ({} if version is None else {"version": version})
        with self.mongo.errors():
            documents = list(self.mongo.collections.artifacts.find(wanted, sort=[("version", 1)]))
        return [_stored(self.mongo, document) for document in documents]

    def fetch_version(self, entry: Mapping[str, Any], into: Path) -> ArtifactVersion:
        reference = f"{entry['name']}@{entry['digest']}"
        try:
            with self.mongo.errors():
                version = fetch(self.mongo.collections, reference, into / ARTIFACTS)
        except ArtifactError as error:
            raise StoreError(str(error)) from error
        if version is None:
            raise StoreError(f"{reference}: the database does not have it")
        return version


_READERS: dict[str, Callable[[MongoRecords, StoredRun], Any]] = {
    "document": MongoRecords._document,
    "status": MongoRecords._status,
    "lease": MongoRecords._lease,
    "metrics": MongoRecords._metrics,
    "values": MongoRecords._values,
    "artifact_details": MongoRecords._artifact_details,
    "damage": lambda _, __: [],  # a database has no files
}


def as_named(summary: Mapping[str, Any], metrics: Iterable[str]) -> dict[str, Any]:
    """Return a stored summary by the names of its metrics."""
    names = {stored_key(name): name for name in metrics}
    return {names.get(key, key): value for key, value in summary.items()}


def fields_of_part(name: str) -> tuple[str, ...]:
    """Return the fields of a run's document that `mapping_in` reads."""
    return name, f"exact.{name}", "uid"


def start_of(run: StoredRun) -> datetime | None:
    """Return when a run started, to the millisecond, from which times of points are counted."""
    return to_the_millisecond(time_of(run.get("start_time") or run.get("queue_time")))


def _output_from(text: str, start: int) -> tuple[bytes, int]:
    """Return the output from a byte on, and the position after it."""
    data = text.encode("utf-8", "replace")
    match = _GAP.search(data)
    if match is None:
        return data[start:], max(start, len(data))
    # Position of the tail in the whole output.
    tail = match.start() + int(match["count"])
    if start <= match.start():
        return data[start:], tail + len(data) - match.end()
    missed = b"\n... %d bytes left out here ...\n" % (tail - start) if start < tail else b""
    return missed + data[match.end() + max(0, start - tail) :], tail + len(data) - match.end()


def _object_id(key: Any) -> Any:
    """Return the id of a file, which is a text where it was read from JSON."""
    return bson.ObjectId(key) if isinstance(key, str) and bson.ObjectId.is_valid(key) else key


def _stored(mongo: MongoDatabase, document: Document) -> StoredArtifact:
    # Other programs may have written the document.
    files, created = mappings_in(document.get("files")), document.get("created")
    return StoredArtifact(
        str(document.get("name")),
        _number(document, "version"),
        str(document.get("type") or ""),
        str(document.get("digest") or ""),
        created.replace(tzinfo=UTC) if isinstance(created, datetime) else None,
        _number(document, "bytes"),
        _number(document, "num_files") or len(files),
        _metadata(mongo, document),
        _texts(document, "made_by"),
        _texts(document, "used_by"),
        {str(file.get("path")): _artifact_file(mongo, file) for file in files},
        {str(file.get("path")): _number(file, "bytes") for file in files},
        {str(file.get("path")): str(file.get("sha256")) for file in files},
    )


def _texts(document: Document, name: str) -> tuple[str, ...]:
    return tuple(map(str, document.get(name) or ()))


def _number(document: Document, name: str) -> int:
    return int(document.get(name) or 0)


def _metadata(mongo: MongoDatabase, document: Document) -> dict[str, Any]:
    with mongo.errors():
        metadata = from_bson(restore(document.get("metadata"), lambda key: mongo.fs.get(key).read()))
    return metadata if isinstance(metadata, dict) else {}


def _artifact_file(mongo: MongoDatabase, file: Document) -> Content:
    name = str(file.get("path"))
    return Content(name, lambda: mongo.open_file(file.get("file_id"), repr(name)))
