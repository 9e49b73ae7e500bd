"""`MongoRun`: one past run in a MongoDB database, ours or stock Sacred's."""

from __future__ import annotations

import contextlib
import functools
import mimetypes
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import bson
import gridfs

from observers.artifacts.store import ARTIFACTS
from observers.errors import ArtifactError
from observers.mongo.documents import files_in, object_id, restore, stored_key
from observers.mongo.fetch import fetch
from observers.mongo.run_document import exact_part, exact_time
from observers.record.identity import true_status
from observers.record.points.points import Series
from observers.record.points.summaries import summarize
from runs.errors import StoreError
from runs.query.serialized import without_pickles
from runs.query.times import without_zone
from runs.stores.content import Content, missing_content
from runs.stores.media import Medium
from runs.stores.mongo.bson_arrays import decode_arrays
from runs.stores.mongo.bson_values import has_changed_keys, note_in, plain, tags_in, with_dots
from runs.stores.mongo.database import MongoDatabase
from runs.stores.mongo.filters import OMNIBOARD_NOTES, OMNIBOARD_TAGS
from runs.stores.mongo.metric_chunks import joined
from runs.stores.mongo.removing import Remover
from runs.stores.run import Run, RunStore
from runs.stores.stock_sacred import series_of

if TYPE_CHECKING:
    from observers.artifacts.version import ArtifactVersion

__all__ = ["SERIES_FIELDS", "STATUS_FIELDS", "MongoRun", "fields_of_part"]

# What `true_status` looks at.
STATUS_FIELDS = ("status", "lease", "heartbeat", "start_time", "meta.options", "uid")

# What `MongoRun.series_in` looks at.
SERIES_FIELDS = ("run_id", "steps", "values", "timestamps")

_PARTS = ("config", "info", "summary", "provenance", "captured_out")
# What an entry of media has only here.
# What people note, and how often it is tried to be first among those who do.
_NOTED, _MOST_TRIES = ("tags", "note", "reproductions"), 100
_OF_MEDIA = ("_id", "run_id", "uid", "file_id", "images", "number")
# What stands in `captured_out` for the middle of a long output; see `observers.mongo.delivery`.
_GAP = re.compile(rb"\n\.\.\. (?P<count>\d+) bytes left out here; [^\n]*\.\.\.\n")


def fields_of_part(name: str) -> tuple[str, ...]:
    """Return the fields of a run's document that `MongoRun.hold_part` looks at."""
    return name, f"exact.{name}", "uid"


class MongoRun(Run):
    """A run in a database.

    Attributes:
        mongo: Where it lies.
        key: Its `_id`.
    """

    def __init__(self, store: RunStore, mongo: MongoDatabase, key: Any, row: Mapping[str, Any] | None = None) -> None:
        super().__init__(store, str(key), row)
        self.mongo = mongo
        self.key = key
        self._parts: dict[str, Any] = {}
        self._names: list[str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "mongo"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.mongo = self.store.mongo  # type: ignore[attr-defined]  # a MongoStore

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        """See `Run.document`."""
        found = self._find(dict.fromkeys(_PARTS, 0))
        exact, times = found.pop("exact", None), found.pop("microseconds", None)
        found |= self._exact_entries(found, exact)
        for name, text in times.items() if isinstance(times, Mapping) else ():
            found[name] = exact_time(found.get(name), text)
        document = without_pickles(plain(self._whole(found)), twice=True)
        ours = {"tags": tags_in(document), "note": note_in(document)}
        return {**document, **{name: value for name, value in ours.items() if value is not None}}

    def with_exact_entries(self, document: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Return a document of the run with entries of these names, which are all there, as they were recorded."""
        given = {key: document[key] for key in (*names, "uid") if key in document}
        found = self._exact_entries(given, document.get("exact"))
        return {**document, **found}

    def _exact_entries(self, document: Mapping[str, Any], exact: Any) -> dict[str, Any]:
        """Return the entries of a document as they were recorded whose stored form does not tell."""
        part = exact.get("run") if isinstance(exact, Mapping) else None
        recorded = None if part is None else self._whole(part)
        known = {key: value for key, value in recorded.items() if key in document} if isinstance(recorded, dict) else {}
        return {
            key: exact_part({"": document[key]}, {"": value}, str(document.get("uid")))[""]
            for key, value in known.items()
        }

    def _whole(self, value: Any) -> Any:
        """Return a value with what is too large for a document put back in its place.

        Raises:
            StoreError: If what is kept outside of the document is gone, or cannot be read as JSON.
        """
        # A large mapping may have a thousand of them.
        contents = self.mongo.contents(keys) if len(keys := list(files_in(value))) > 1 else {}

        def read(key: Any) -> bytes:
            return contents[key] if key in contents else self._content("a large entry", key).read()

        try:
            return restore(value, read)
        except ValueError as error:
            raise StoreError(f"a large entry of run {self.id} is not JSON ({error})") from error

    def _whole_list(self, document: Mapping[str, Any], name: str) -> list[Any]:
        """Return a list of the document, all of it where it was cut off."""
        value = document.get(f"{name}_file") or document.get(name)
        value = self._whole(value) if isinstance(value, Mapping) else value
        return value if isinstance(value, list) else []

    def _find(self, projection: Mapping[str, int]) -> dict[str, Any]:
        with self.mongo.errors():
            found = self.mongo.runs.find_one({"_id": self.key}, projection)
        if found is None:
            raise StoreError(f"run {self.id} is no longer in {self.store.where}")
        return found

    def _check_is_there(self) -> None:
        self._find({"_id": 1})

    def _nothing(self) -> list[Any]:
        """Return an empty list; of a run that is gone, raise."""
        self._check_is_there()
        return []

    def _part(self, name: str) -> dict[str, Any]:
        if name not in self._parts:
            self.hold_part(name, self._find(dict.fromkeys(fields_of_part(name), 1)))
        if name == "summary":
            self._parts[name] = self._as_named(self._parts[name]) or self.computed_summary()
        return self._parts[name]

    def hold_part(self, name: str, document: Mapping[str, Any]) -> None:
        """Keep a part of the run for when it is asked for.

        Args:
            name: `config`, `info`, `summary` or `provenance`.
            document: The run's, with `fields_of_part`.

        Raises:
            StoreError: If it is no mapping, or what is kept outside of the document is gone.
        """
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
        self._parts[name] = without_pickles(plain(part or {}))

    def hold(self, fields: Mapping[str, Any]) -> None:
        """Keep fields of the run, by their full names, for when they are asked for."""
        self._row |= fields

    def hold_metric_names(self, names: list[str]) -> None:
        """Keep the names of the run's metrics for when they are asked for."""
        self._names = names

    def holds(self, name: str) -> bool:
        """Tell whether a part or a field, or `metrics`, need not be asked for."""
        return self._names is not None if name == "metrics" else name in self._parts or name in self._row

    def _as_named(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Return a summary under the names of the metrics in place of the keys that MongoDB can hold."""
        if not has_changed_keys(summary):
            return summary
        names = {stored_key(name): name for name in self._metric_names()}
        return {names.get(key, key): value for key, value in summary.items()}

    def computed_summary(self, names: set[str] | None = None) -> dict[str, Any]:
        """Return the summary of what stock Sacred recorded, which keeps none; of all metrics, or of `names`."""
        query = {"run_id": self.key, **({"name": {"$in": sorted(names)}} if names is not None else {})}
        found = {}
        with self.mongo.errors():
            for document in self.mongo.metrics.find(query, {"name": 1, "steps": 1, "values": 1}):
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
        found = plain(self._find(dict.fromkeys(STATUS_FIELDS, 1)))
        return true_status(found, found.get("lease")) or ""

    def _metric_names(self) -> list[str]:
        if self._names is not None:
            return self._names
        with self.mongo.errors():
            names = self.mongo.metrics.distinct("name", {"run_id": self.key})
        return names or self._nothing()

    def _series(self, name: str) -> Series | None:
        with self.mongo.errors():
            raw = self.mongo.raw_metrics.find_one({"run_id": self.key, "name": name}, SERIES_FIELDS)
        return None if raw is None else self.series_in(decode_arrays(bytes(raw.raw)), name)

    def series_in(self, document: Mapping[str, Any], name: str, has_chunks: bool = True) -> Series | None:
        """Return a metric, whose first points are in a document with `SERIES_FIELDS`."""
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

    def hold_start(self, document: Mapping[str, Any]) -> None:
        """Keep when it started, which a document with `start_time` tells, for when points are asked for."""
        self._start = self._start_in(document)

    def read_output(self, start: int = 0, max_bytes: int | None = None) -> tuple[bytes, int]:
        """See `Run.read_output`."""
        data, end = self._output_from(max(start, 0))
        data = data[start:] if start < 0 else data
        if max_bytes is not None and len(data) > max_bytes:
            end -= len(data) - max_bytes
            data = data[:max_bytes]
        return data, end

    def _output_from(self, start: int) -> tuple[bytes, int]:
        """Return the output from a byte on, and the byte behind it."""
        found = self._find({"captured_out": 1, "captured_out_file": 1})
        if found.get("captured_out_file") is not None:
            with self._content("captured output", found["captured_out_file"]).open() as stream, self.mongo.errors():
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
    def rank_outputs(self) -> dict[int, Content]:
        """See `Run.rank_outputs`."""
        found = self._find({"rank_outputs": 1}).get("rank_outputs")
        entries = [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []
        ranks = {entry.get("rank"): entry.get("file_id") for entry in entries}
        if ranks:
            return {
                rank: self._content(f"output of rank {rank}", file_id)
                for rank, file_id in ranks.items()
                if isinstance(rank, int)
            }
        original = self.original()
        return {} if original is None else original.rank_outputs

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
    def checkpoints(self) -> dict[str, Content]:
        """See `Run.checkpoints`."""
        found = self._find({"checkpoints": 1}).get("checkpoints")
        entries = [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []
        if entries:
            return {
                str(entry.get("name")): self._content(str(entry.get("name")), entry.get("file_id")) for entry in entries
            }
        original = self.original()
        return {} if original is None else original.checkpoints

    @property
    def lease(self) -> dict[str, Any] | None:
        """See `Run.lease`."""
        lease = self._find({"lease": 1}).get("lease")
        return plain(lease) if isinstance(lease, Mapping) else None

    @property
    def media(self) -> list[Medium]:
        """See `Run.media`."""
        with self.mongo.errors():
            entries = list(self.mongo.media.find({"run_id": self.key}, sort=[("number", 1)])) or self._nothing()
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
        with self.mongo.errors():
            found = {document["_id"]: document for document in self.mongo.media.find({"run_id": self.key})}
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
            with self.mongo.errors():
                file = self.mongo.database.fs.files.find_one({"_id": key}) if key is not None else None
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
        try:
            with self.mongo.errors():
                version = fetch(self.mongo.collections, reference, into / ARTIFACTS)
        except ArtifactError as error:
            raise StoreError(str(error)) from error
        if version is None:
            raise StoreError(f"{reference}: the database does not have it")
        return version

    def original(self) -> Run | None:
        """See `Run.original`."""
        recorded = self.document.get("folder")
        folder = Path(str(recorded or ""))
        if not recorded or self.uid is None or not folder.is_dir():
            return None
        from runs.stores.folders.store import FolderStore

        with contextlib.suppress(StoreError):  # a folder without a readable record is not that of the run
            found = FolderStore(folder.parent).get(folder.name)
            return found if found.uid == self.uid else None
        return None

    def _change_notes(self, change: Callable[[Run], Mapping[str, Any]]) -> None:
        with self.mongo.errors():
            for _ in range(_MOST_TRIES):
                known = self._find(dict.fromkeys(_NOTED, 1))
                now = MongoRun(self.store, self.mongo, self.key)
                notes = change(now)
                same = {name: known.get(name) for name in notes}  # else others wrote since
                if self.mongo.runs.update_one({"_id": self.key, **same}, {"$set": dict(notes)}).matched_count:
                    break
            else:
                raise StoreError(f"the notes of run {self.id} are changed by others all the time; try again")
            if "note" in notes:
                same = {"$set": {OMNIBOARD_NOTES: notes["note"]}}
                self.mongo.runs.update_one({"_id": self.key, OMNIBOARD_NOTES: {"$type": "string"}}, same)
            if removed := [tag for tag in now.tags if tag not in notes.get("tags", now.tags)]:
                found = {"_id": self.key, OMNIBOARD_TAGS: {"$type": "array"}}
                self.mongo.runs.update_one(found, {"$pull": {OMNIBOARD_TAGS: {"$in": removed}}})

    def _remove(self) -> None:
        with self.mongo.errors():
            Remover(self.mongo).remove(self.key)

    def _discard(self) -> None:
        with self.mongo.errors():
            Remover(self.mongo).discard(self.key)

    def _content(self, name: str, key: Any) -> Content:
        if key is None:
            return missing_content(name, "the record names no file")

        if isinstance(key, str) and bson.ObjectId.is_valid(key):  # as JSON holds it
            key = bson.ObjectId(key)

        def open_() -> BinaryIO:
            with self.mongo.errors():
                try:
                    return self.mongo.fs.get(key)
                except gridfs.errors.NoFile as error:
                    raise StoreError(f"{name!r} of run {self.id} is not in the database") from error

        def find_md5() -> str | None:
            with self.mongo.errors():
                found = (self.mongo.database.fs.files.find_one({"_id": key}, {"md5": 1}) or {}).get("md5")
            return found if isinstance(found, str) else None

        return Content(name, open_, find_md5=find_md5)
