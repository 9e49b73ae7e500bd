"""`MongoRun`: one past run in a MongoDB database, recorded by the lab or by stock Sacred."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import mimetypes
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson

from sacristan.configs.map import value_at
from sacristan.observers.artifacts.store import ARTIFACTS
from sacristan.observers.errors import ArtifactError
from sacristan.observers.mongo.artifacts import fetch
from sacristan.observers.mongo.documents import exact_part, exact_time, files_in, object_id, restore, stored_key
from sacristan.observers.record.identity import true_status
from sacristan.observers.record.points.points import Series, summarize
from sacristan.observers.record.schema import newer_format
from sacristan.runs.errors import StoreError
from sacristan.runs.query.flattening import list_of, mapping_of, mappings_in
from sacristan.runs.query.serialized import without_pickles
from sacristan.runs.query.times import without_zone
from sacristan.runs.stores.content import Content, Medium, missing_content
from sacristan.runs.stores.mongo.bson_arrays import decode_arrays, joined
from sacristan.runs.stores.mongo.database import MongoDatabase
from sacristan.runs.stores.mongo.documents import (
    STATUS_FIELDS,
    from_bson,
    has_changed_keys,
    note_in,
    tags_in,
    with_dots,
)
from sacristan.runs.stores.run import Run, RunStore
from sacristan.runs.stores.stock_sacred import other_values, series_of

if TYPE_CHECKING:
    from sacristan.observers.artifacts.version import ArtifactVersion

__all__ = ["SERIES_FIELDS", "MongoRun", "fields_of_part"]

# The fields that `MongoRun.series_in` reads.
SERIES_FIELDS = ("run_id", "steps", "values", "timestamps")

_NOT_IN_DOCUMENT = ("config", "info", "summary", "provenance", "captured_out")
# Fields of a stored medium that its record lacks, and fields that every record has.
_OF_MEDIA = ("_id", "run_id", "uid", "file_id", "images", "number")
_OF_MEDIUM = ("name", "kind", "step", "content_type", "meta")
# The line in `captured_out` that replaces the middle of a long output; see `sacristan.observers.mongo.delivery`.
_GAP = re.compile(rb"\n\.\.\. (?P<count>\d+) bytes left out here; [^\n]*\.\.\.\n")


def fields_of_part(name: str) -> tuple[str, ...]:
    """Return the fields of a run's document that `MongoRun.hold_part` reads."""
    return name, f"exact.{name}", "uid"


class MongoRun(Run):
    """A run in a database.

    Args:
        row: Known fields by full name.
    """

    def __init__(self, store: RunStore, mongo: MongoDatabase, key: Any, row: Mapping[str, Any] | None = None) -> None:
        super().__init__(store, str(key), row)
        self.mongo = mongo
        self.key = key
        # Parts as the database holds them.
        self._held: dict[str, dict[str, Any]] = {}
        self._names: list[str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "mongo"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.mongo = self.store.backend.mongo  # type: ignore[attr-defined]  # a store over a MongoBackend

    # ------------------------------------------------------------------ the document

    def _find(self, projection: Mapping[str, int]) -> dict[str, Any]:
        wanted = {**projection, "format": 1} if all(projection.values()) else projection
        with self.mongo.errors():
            document = self.mongo.runs.find_one({"_id": self.key}, wanted)
        if document is None:
            raise StoreError(f"run {self.id} is no longer in {self.store.where}")
        if newer := newer_format(document):
            raise StoreError(f"run {self.id} of {self.store.where} cannot be read: {newer}")
        return document

    def _check_is_there(self) -> None:
        self._find({"_id": 1})

    def _nothing(self) -> list[Any]:
        """Return an empty list, or raise a StoreError if the run is gone."""
        self._check_is_there()
        return []

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        stored = self._find(dict.fromkeys(_NOT_IN_DOCUMENT, 0))
        exact, times = stored.pop("exact", None), stored.pop("microseconds", None)
        stored |= self._exact_entries(stored, exact)
        for name, text in mapping_of(times).items():
            stored[name] = exact_time(stored.get(name), text)
        document = without_pickles(from_bson(self._whole(stored)), twice=True)
        notes = {"tags": tags_in(document), "note": note_in(document)}
        return {**document, **{name: value for name, value in notes.items() if value is not None}}

    def with_exact_entries(self, document: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Return a document, which has `exact.run`, with the named entries as they were recorded."""
        stored = {key: document[key] for key in (*names, "uid") if key in document}
        return {**document, **self._exact_entries(stored, document.get("exact"))}

    def _exact_entries(self, document: Mapping[str, Any], exact: Any) -> dict[str, Any]:
        """Return the original form of the entries that MongoDB cannot hold as recorded."""
        part = mapping_of(exact).get("run")
        recorded = mapping_of(None if part is None else self._whole(part))
        return {
            key: exact_part({"": document[key]}, {"": value}, str(document.get("uid")))[""]
            for key, value in recorded.items()
            if key in document
        }

    def _whole(self, value: Any) -> Any:
        """Return a value with its large entries read from their files; a missing or invalid file is a StoreError."""
        # A large mapping may have a thousand files.
        contents = self.mongo.contents(keys) if len(keys := list(files_in(value))) > 1 else {}

        def read(key: Any) -> bytes:
            return contents[key] if key in contents else self._content("a large entry", key).read()

        try:
            return restore(value, read)
        except ValueError as error:
            raise StoreError(f"a large entry of run {self.id} is not JSON ({error})") from error

    def _entries(self, name: str) -> list[Any]:
        """Return a list in the document, or from the file if it was too long for that."""
        document = self._find({name: 1, f"{name}_file": 1})
        value = value_at(document, f"{name}_file") or value_at(document, name)
        return list_of(self._whole(value) if isinstance(value, Mapping) else value)

    # ------------------------------------------------------------------ parts, status, lease

    def _part(self, name: str) -> dict[str, Any]:
        if name not in self._held:
            self.hold_part(name, self._find(dict.fromkeys(fields_of_part(name), 1)))
        part = self._held[name]
        return part if name != "summary" else self._as_named(part) or self.computed_summary()

    def hold_part(self, name: str, document: Mapping[str, Any]) -> None:
        """Keep a part, one of `PARTS`, from a document with `fields_of_part(name)`."""
        part, exact = document.get(name), document.get("exact")
        if isinstance(exact, Mapping) and name in exact:
            part = exact_part(part, self._whole(exact[name]), str(document.get("uid")))
        part = self._whole(part)
        if name == "provenance" and isinstance(part, dict):
            part |= {key: with_dots(part[key]) for key in ("packages", "libraries") if key in part}
        if not isinstance(part, Mapping | None):
            raise StoreError(
                f"{name} of run {self.id} holds {type(part).__name__}, expected an object; "
                "the rest of the run may still be read"
            )
        self._held[name] = without_pickles(from_bson(part or {}))

    def hold_metric_names(self, names: list[str]) -> None:
        """Keep the names of the run's metrics for later."""
        self._names = names

    def holds(self, name: str) -> bool:
        """Tell whether a part, a field or `metrics` can be read without a query."""
        return self._names is not None if name == "metrics" else name in self._held or name in self._row

    def _as_named(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Return a summary by the names of its metrics instead of its keys, which MongoDB restricts."""
        if not has_changed_keys(summary):
            return summary
        names = {stored_key(name): name for name in self._metric_names()}
        return {names.get(key, key): value for key, value in summary.items()}

    def computed_summary(self, names: set[str] | None = None) -> dict[str, Any]:
        """Compute the statistics of some or all metrics, which stock Sacred does not record."""
        query = {"run_id": self.key, **({"name": {"$in": sorted(names)}} if names is not None else {})}
        summary = {}
        with self.mongo.errors():
            for document in self.mongo.metrics.find(query, {"name": 1, "steps": 1, "values": 1}):
                series = series_of(document, None)
                if series is not None and len(series):
                    summary[document["name"]] = summarize(series.values, series.steps)
        return summary

    def hold_summary(self, summary: dict[str, Any], names: Iterable[str]) -> None:
        """Keep the fields `names`, `summary` or below it, from statistics by metric."""
        for name in names:
            metric, _, statistic = name.removeprefix("summary").removeprefix(".").rpartition(".")
            self._row[name] = summary.get(metric, {}).get(statistic) if metric or statistic else summary

    def _true_status(self) -> str:
        # Not from the whole document, parts of which may be gone.
        found = from_bson(self._find(dict.fromkeys(STATUS_FIELDS, 1)))
        return true_status(found, found.get("lease")) or ""

    @property
    def lease(self) -> dict[str, Any] | None:
        lease = self._find({"lease": 1}).get("lease")
        return from_bson(lease) if isinstance(lease, Mapping) else None

    def original(self) -> Run | None:
        recorded = self.document.get("folder")
        folder = Path(str(recorded or ""))
        if not recorded or self.uid is None or not folder.is_dir():
            return None
        from sacristan.runs.stores.folders.backend import FolderBackend
        from sacristan.runs.stores.store import Store

        with contextlib.suppress(StoreError):  # a folder without a readable record holds another run
            run = Store(FolderBackend(folder.parent)).get(folder.name)
            return run if run.uid == self.uid else None
        return None

    # ------------------------------------------------------------------ points

    def _metric_names(self) -> list[str]:
        if self._names is not None:
            return self._names
        with self.mongo.errors():
            names = self.mongo.metrics.distinct("name", {"run_id": self.key})
        names = [name for name in names if isinstance(name, str)]  # documents of others may have anything there
        return names or self._nothing()

    def _info_entries(self, *names: str) -> Mapping[str, Any]:
        if "info" in self._held or any("." in name or name.startswith("$") for name in names):
            return super()._info_entries()
        found = self._find({"exact.info": 1, **{f"info.{name}": 1 for name in names}})
        if mapping_of(found.get("exact")).get("info") is not None:
            return super()._info_entries()
        entries: dict[str, Any] = without_pickles(from_bson(self._whole(mapping_of(found.get("info")))))
        return entries

    def _series(self, name: str) -> Series | None:
        with self.mongo.errors():
            raw = self.mongo.raw_metrics.find_one({"run_id": self.key, "name": name}, SERIES_FIELDS)
        return None if raw is None else self.series_in(decode_arrays(bytes(raw.raw)), name)

    def series_in(self, document: Mapping[str, Any], name: str, has_chunks: bool = True) -> Series | None:
        """Return the points of a metric from its document, with `SERIES_FIELDS`, and any further ones from chunks."""
        series = series_of(document, self._start)
        if series is None or not has_chunks:
            return series
        query = {"run_id": self.key, "name": name}
        with self.mongo.errors():
            return joined(series, self.mongo.chunks.find(query, {"data": 1, "float_steps": 1}, sort=[("index", 1)]))

    @functools.cached_property
    def _start(self) -> datetime | None:
        """When it started, to the millisecond, from which times of points are counted."""
        return self._start_in(self._find({"start_time": 1}))

    def _start_in(self, document: Mapping[str, Any]) -> datetime | None:
        start = document.get("start_time")
        return start if isinstance(start, datetime) else without_zone(self.start_time)

    @property
    def holds_start(self) -> bool:
        """True if the start is known without a query."""
        return "_start" in self.__dict__

    def hold_start(self, document: Mapping[str, Any]) -> None:
        """Keep the start in a document, which has `start_time`, for later."""
        self._start = self._start_in(document)

    # ------------------------------------------------------------------ output

    def read_output(self, start: int = 0, max_bytes: int | None = None) -> tuple[bytes, int]:
        found = self._find({"captured_out": 1, "captured_out_file": 1})
        if found.get("captured_out_file") is not None:
            with self._content("captured output", found["captured_out_file"]).open() as stream, self.mongo.errors():
                start = max(stream.seek(0, os.SEEK_END) + start, 0) if start < 0 else start
                stream.seek(start)
                data = stream.read(-1 if max_bytes is None else max_bytes)
                return data, start + len(data)
        data, end = _output_from(str(found.get("captured_out") or ""), max(start, 0))
        data = data[start:] if start < 0 else data
        if max_bytes is not None and len(data) > max_bytes:
            end -= len(data) - max_bytes
            data = data[:max_bytes]
        return data, end

    @property
    def rank_outputs(self) -> dict[int, Content]:
        entries = mappings_in(self._find({"rank_outputs": 1}).get("rank_outputs"))
        if not entries:
            original = self.original()
            return {} if original is None else original.rank_outputs
        ranks = {entry.get("rank"): entry.get("file_id") for entry in entries}
        return {
            rank: self._content(f"output of rank {rank}", key) for rank, key in ranks.items() if isinstance(rank, int)
        }

    # ------------------------------------------------------------------ files

    def stored(self, kind: str) -> list[Content]:
        if kind in ("sources", "resources"):
            return self._shared_files("experiment.sources" if kind == "sources" else kind)
        entries = mappings_in(self._entries(kind))
        original = self.original() if kind == "checkpoints" and not entries else None
        if original is not None:
            return original.stored(kind)
        return [self._content(str(entry.get("name")), entry.get("file_id")) for entry in entries]

    def _shared_files(self, name: str) -> list[Content]:
        pairs = (pair for pair in self._entries(name) if isinstance(pair, list) and len(pair) == 2)
        return [self._content(str(name), key) for name, key in pairs]

    @property
    def media(self) -> list[Medium]:
        blank = dict.fromkeys(_OF_MEDIUM)
        return [Medium.of({**blank, **entry}, contents) for entry, contents in self._media_entries()]

    def media_entries(self) -> list[tuple[dict[str, Any], list[Content]]]:
        return [
            (entry, [dataclasses.replace(content, name=content.name.rpartition("/")[2]) for content in contents])
            for entry, contents in self._media_entries()
        ]

    def _media_entries(self) -> list[tuple[dict[str, Any], list[Content]]]:
        """Return each entry with its files, which have the names in the record."""
        with self.mongo.errors():
            documents = list(self.mongo.media.find({"run_id": self.key})) or self._nothing()
        # An `_id` tells the medium's position in the run's folder.
        positions = {object_id(str(self.uid), "media", number): number for number in range(len(documents))}
        last = len(documents)

        def position(document: Mapping[str, Any]) -> float:
            number = document.get("number")  # of any type, if others wrote it
            return number if isinstance(number, int | float) else positions.get(document["_id"], last)

        documents.sort(key=position)
        return [self._medium_entry(document) for document in documents]

    def _medium_entry(self, document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Content]]:
        images = mappings_in(document.get("images"))
        entry = from_bson(self._whole({key: value for key, value in document.items() if key not in _OF_MEDIA}))
        entry |= {"images": [image.get("file") for image in images]} if images else {}
        return entry, [self._content(str(file.get("file")), file.get("file_id")) for file in (document, *images)]

    def artifact_details(self) -> dict[str, dict[str, Any]]:
        details: dict[str, dict[str, Any]] = {}
        for entry in mappings_in(self._entries("artifacts")):
            key = _object_id(entry.get("file_id"))
            with self.mongo.errors():
                file = self.mongo.database.fs.files.find_one({"_id": key}) if key is not None else None
            if file is not None:
                name, content_type = str(entry.get("name")), file.get("contentType")
                detail: dict[str, Any] = {"metadata": from_bson(self._whole(file.get("metadata")))}
                if content_type != mimetypes.guess_type(name)[0]:
                    detail["content_type"] = content_type
                details |= {name: detail} if any(detail.values()) else {}
        return details

    def odd_values(self) -> bytes:
        found = self._find({"values_file": 1, "format": 1})
        if key := found.get("values_file"):
            return self._content("values.jsonl", key).read()
        if str(found.get("format")).startswith("sacristan"):
            return b""
        with self.mongo.errors():
            documents = self.mongo.metrics.find({"run_id": self.key}, ("name", *SERIES_FIELDS))
            return other_values({str(document.get("name")): from_bson(document) for document in documents}, self._start)

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

    def _content(self, name: str, key: Any) -> Content:
        if key is None:
            return missing_content(name, "the record names no file")
        key = _object_id(key)

        def find_md5() -> str | None:
            with self.mongo.errors():
                found = (self.mongo.database.fs.files.find_one({"_id": key}, {"md5": 1}) or {}).get("md5")
            return found if isinstance(found, str) else None

        return Content(name, lambda: self.mongo.open_file(key, f"{name!r} of run {self.id}"), find_md5=find_md5)


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
