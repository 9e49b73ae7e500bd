"""The document of a run, made from its folder, within MongoDB's limits.

These are 16 MB, 100 levels, 64-bit integers, UTF-8, and keys without dots.

Any JSON of a run is made storable. If it is too large or too deep, the large parts are stored as files, as JSON, and a
stand-in replaces them:

    {"stored_as_file": "6f1d0c...", "bytes": 20971520}

The small entries beside a large one stay where readers and queries look for them. Lists that Sacred's readers need
(artifacts, resources, sources, metrics) stay lists, truncated, and the whole list is in `<name>_file`. `restore` puts
the files back in place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import bson

from sacristan.observers.mongo.layout import Document
from sacristan.observers.record import schema
from sacristan.observers.record.files import open_regular, read_regular
from sacristan.observers.record.identity import last_beat
from sacristan.observers.record.json_text import is_large, is_text_only, parse_json, storable_integer, storable_text

# About 20 entries and 4 lists of these sizes fit into 16 MB, and listing runs stays fast.
ENTRY_BYTES = 256 * 1024
LIST_BYTES = 2 * 2**20
MAX_DEPTH = 64
# Smaller values are not worth a separate file.
_WORTH_BYTES = 1024
# The entry of a stand-in that names the file of a large value.
FILE = "stored_as_file"


def object_id(*parts: str | int) -> bson.ObjectId:
    """Return the ObjectId made from the first 12 bytes of a SHA-256."""
    text = "\0".join(map(str, parts))
    return bson.ObjectId(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:12])


def content_id(sha256: str) -> Any:
    """Return the id in GridFS of a content that only artifacts share; other files are deleted with their run."""
    return object_id("artifact content", sha256)


class Packer:
    """Makes entries of a run storable: `files` are those of stand-ins, by id; `is_exact` if all can be restored."""

    def __init__(self, uid: str, limit: int = ENTRY_BYTES) -> None:
        self.uid = uid
        self.limit = limit
        self.files: dict[bson.ObjectId, bytes] = {}
        self.is_exact = True

    def entry(self, value: Any) -> Any:
        """Return a value as BSON holds it, within the limit; parts too large or too deep become stand-ins."""
        try:
            packed, size = self._pack(value, 0)
            return packed if size <= self.limit else self._stand_in(value)[0]
        except RecursionError:
            try:
                return self._stand_in(value)[0]
            except RecursionError:
                return "(nested too deeply to be stored)"

    def whole_file(self, content: bytes) -> dict[str, Any]:
        """Return the stand-in for a JSON file; its id, of SHA-256 and run, stores the same content once."""
        file_id = object_id("entry", self.uid, hashlib.sha256(content).hexdigest())
        self.files[file_id] = content
        return {FILE: str(file_id), "bytes": len(content)}

    def list_entry(self, name: str, values: Sequence[Any], limit: int = LIST_BYTES) -> dict[str, Any]:
        """Return the entry of a list; one above `limit` bytes, roughly, is truncated, and has a `<name>_file`."""
        kept: list[Any] = []
        total = 0
        for value in values:
            packed, size = self._pack(value, MAX_DEPTH - 2)
            total += size + 8
            if total > limit:
                return {name: kept, f"{name}_file": self._stand_in(values)[0]}
            kept.append(packed)
        return {name: kept}

    def _pack(self, value: Any, depth: int) -> tuple[Any, int]:
        """Return a value as BSON holds it, and its size in bytes, roughly."""
        if isinstance(value, Mapping | list | tuple):
            if depth >= MAX_DEPTH and value:
                return self._stand_in(value)
            return self._pack_mapping(value, depth) if isinstance(value, Mapping) else self._pack_list(value, depth)
        if isinstance(value, int) and not isinstance(value, bool) and is_large(value):
            if not is_text_only(value):
                return bson.Decimal128(str(value)), 16
            value = storable_integer(value)
            self.is_exact = False
        if isinstance(value, str):
            storable = storable_text(value)
            self.is_exact &= storable == value
            return storable, len(storable.encode()) + 5
        return value, 12

    def _pack_list(self, values: Sequence[Any], depth: int) -> tuple[Any, int]:
        packed = [self._pack(value, depth + 1) for value in values]
        size = 5 + sum(size for _, size in packed) + len(packed) * (2 + len(str(len(packed))))
        return [value for value, _ in packed], size

    def _pack_mapping(self, values: Mapping[str, Any], depth: int) -> tuple[Any, int]:
        packed: dict[str, Any] = {}
        sizes: dict[str, tuple[int, Any]] = {}
        total = 5
        for original, value in values.items():
            key = stored_key(original)
            self.is_exact &= key == original
            while key in packed:  # "a.b" and "a,b" differ
                key += "_"
            packed[key], size = self._pack(value, depth + 1)
            sizes[key] = size, value
            total += size + len(key.encode()) + 2
        for key in sorted(sizes, key=lambda key: -sizes[key][0]) if total > self.limit else ():
            size, value = sizes[key]
            if total <= self.limit or size < _WORTH_BYTES:
                break
            packed[key], smaller = self._stand_in(value)
            total += smaller - size
        return (packed, total) if total <= self.limit else self._stand_in(values)

    def _stand_in(self, value: Any) -> tuple[dict[str, Any], int]:
        return self.whole_file(json.dumps(value, default=str).encode()), 80


def files_in(value: Any) -> Iterator[bson.ObjectId]:
    """Yield the ids of the files of all stand-ins in a packed value."""
    if isinstance(value, list):
        for item in value:
            yield from files_in(item)
    elif isinstance(value, dict):
        if bson.ObjectId.is_valid(value.get(FILE)):
            yield bson.ObjectId(value[FILE])
        for item in value.values():
            yield from files_in(item)


def restore(value: Any, read: Callable[[bson.ObjectId], bytes]) -> Any:
    """Return a packed value with the files of its stand-ins in their places."""
    if isinstance(value, list):
        return [restore(item, read) for item in value]
    if not isinstance(value, dict):
        return value
    if not bson.ObjectId.is_valid(value.get(FILE)):
        return {key: restore(item, read) for key, item in value.items()}
    whole = parse_json(read(bson.ObjectId(value[FILE])))
    beside = {key: restore(item, read) for key, item in value.items() if key not in (FILE, "bytes")}
    return {**whole, **beside} if isinstance(whole, dict) else whole


def stored_key(key: Any) -> str:
    """Return a key as MongoDB holds it, as in Sacred: dots become commas, a leading dollar sign an at sign."""
    text = storable_text(str(key)).replace(".", ",").replace("\0", "")
    return f"@{text[1:]}" if text.startswith("$") else text


# ---------------------------------------------------------------------- the document of a run

OUTPUT_HEAD_BYTES = OUTPUT_TAIL_BYTES = 64 * 1024
# Entries of run.json that the document has in another form, or not at all.
_NOT_AS_THEY_ARE = (
    *("uid", "experiment", "resources", "artifacts", "artifact_details", "command_line", "fail_trace"),
    *("artifacts_logged", "artifacts_used", "artifact_paths", "earlier_artifacts", "rewinding"),
)
_TIMES = ("start_time", "stop_time", "heartbeat", "queue_time")
# Files that are stored once more as they are, if their packed form is not exact.
_EXACT_PARTS = {"config": schema.CONFIG, "info": schema.INFO}


class RunDocument:
    """Makes the document of one run from its `folder`, which the owner updates if it is moved."""

    def __init__(self, folder: Path, uid: str) -> None:
        self.folder = folder
        self.packer = Packer(uid)
        # By file name: a stamp that changes with the file, its packed content, the files of its large entries, and the
        # stand-in for the original, if the packed content is not exact.
        self._entries: dict[str, tuple[tuple[int, ...], Any, dict[bson.ObjectId, bytes], Document | None]] = {}

    def build(self, run: Mapping[str, Any], metric_names: Iterable[str]) -> Document:
        """Return the document of the run without lists of files; `metric_names` have points in the database."""
        packer = self.packer
        packer.files.clear()
        kept = {key: value for key, value in run.items() if key not in (*_NOT_AS_THEY_ARE, *_TIMES)}
        document = {key: packer.entry(value) for key, value in kept.items()} | _times(run)
        lease = None
        with contextlib.suppress(ValueError):  # a power cut may have emptied it
            lease = schema.read_json(self.folder / schema.LEASE)
        if isinstance(lease, dict):
            document["lease"] = packer.entry(lease)
            beat = last_beat(lease)
            if document.get("status") == "RUNNING" and beat is not None:
                document["heartbeat"] = beat
        document |= self._exact(kept, run)
        for key in ("command_line", "fail_trace"):
            if isinstance(run.get(key), list):
                document |= packer.list_entry(key, run[key], ENTRY_BYTES)
        document |= {
            "config": self._entry(schema.CONFIG),
            "info": self._info(metric_names),
            "summary": self._entry(schema.SUMMARY),
        }
        document["captured_out"] = shortened_output(self.folder)
        document.setdefault("result", None)
        if (self.folder / schema.PROVENANCE).exists():
            document["provenance"] = self._entry(schema.PROVENANCE)
        experiment = {key: value for key, value in run["experiment"].items() if key != "sources"}
        document["experiment"] = {**packer.entry(experiment), "sources": []}
        return {**document, "resources": [], "artifacts": []}

    def _entry(self, name: str) -> Any:
        """Return the packed content of a JSON file, which is read again only if it has changed."""
        path = self.folder / name
        try:
            stat = path.stat()
            stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if name not in self._entries or self._entries[name][0] != stamp:
                # Runs are sorted by the summary, which may have thousands of metrics.
                limit = LIST_BYTES if name == schema.SUMMARY else ENTRY_BYTES
                self._entries[name] = (stamp, *self._pack_file(read_regular(path), limit))
        except FileNotFoundError:
            return {}
        _, packed, files, _ = self._entries[name]
        self.packer.files |= files
        return packed

    def _exact(self, entries: Mapping[str, Any], run: Mapping[str, Any]) -> Document:
        """Return the original of parts and entries whose stored form is not exact; see `exact_part`."""
        exact: Document = {}
        for part, name in _EXACT_PARTS.items():
            self._entry(name)
            if name in self._entries and self._entries[name][3] is not None:
                exact[part] = self._entries[name][3]
        odd = {}
        for key, value in entries.items():
            packer = Packer(self.packer.uid)
            packer.entry(value)
            if not packer.is_exact:
                odd[key] = value
        if odd:
            exact["run"] = self.packer.whole_file(json.dumps(odd, default=str).encode())
        times = {key: run[key] for key in _times(run) if datetime.fromisoformat(run[key]).microsecond % 1000}
        return ({"exact": exact} if exact else {}) | ({"microseconds": times} if times else {})

    def _pack_file(self, raw: bytes, limit: int) -> tuple[Any, dict[bson.ObjectId, bytes], Document | None]:
        packer = Packer(self.packer.uid, limit)
        try:
            packed = packer.entry(parse_json(raw) or {})
        except ValueError:  # too many levels or digits
            packed = packer.whole_file(raw)
        exact = None if packer.is_exact else packer.whole_file(raw)
        kept = set(files_in([packed, exact]))
        return packed, {key: content for key, content in packer.files.items() if key in kept}, exact

    def _info(self, metric_names: Iterable[str]) -> Document:
        """Return the run's info, with Sacred's list of metrics, which its readers need."""
        listed = [{"name": name, "id": str(object_id(self.packer.uid, name))} for name in sorted(metric_names)]
        return {**self._entry(schema.INFO), **(self.packer.list_entry("metrics", listed) if listed else {})}


def exact_part(stored: Any, exact: Any, uid: str) -> Any:
    """Return `exact` if `stored` was made from it; otherwise `stored`, which was changed later or is newer."""
    if not isinstance(stored, Mapping) or not isinstance(exact, Mapping):
        return stored
    packed = Packer(uid).entry(exact)
    own = {key: value for key, value in stored.items() if key != "metrics"}
    is_same = isinstance(packed, Mapping) and packed == own
    return exact if is_same or packed == stored else stored


def exact_time(stored: Any, text: Any) -> Any:
    """Return a time to the microsecond: `text` if `stored`, in milliseconds, was made from it; otherwise `stored`."""
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return stored
    return text if time.replace(microsecond=time.microsecond // 1000 * 1000) == stored else stored


def output_size(folder: Path) -> int:
    """Return the length of a run's captured output in bytes."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / schema.OUTPUT).stat().st_size
    return 0


def output_sizes(folder: Path) -> list[int]:
    """Return the bytes of output of each process of a run, rank 0 first; they change with any new output."""
    return [output_size(folder), *(path.stat().st_size for path in schema.rank_files(folder).values())]


def shortened_output(folder: Path) -> str:
    """Return a run's output as UTF-8; of more than 128 KiB, the first and last 64 with a note between them."""
    size = output_size(folder)
    if not size:
        return ""
    with open_regular(folder / schema.OUTPUT) as stream:
        if size <= OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES:
            return stream.read().decode("utf-8", "replace")
        head = stream.read(OUTPUT_HEAD_BYTES).decode("utf-8", "replace")
        stream.seek(size - OUTPUT_TAIL_BYTES)
        tail = stream.read().decode("utf-8", "replace")
    left_out = size - OUTPUT_HEAD_BYTES - OUTPUT_TAIL_BYTES
    return f"{head}\n... {left_out} bytes left out here; all of it is stored as a file when the run ends ...\n{tail}"


def _times(run: Mapping[str, Any]) -> dict[str, datetime]:
    return {key: datetime.fromisoformat(run[key]) for key in _TIMES if isinstance(run.get(key), str)}
