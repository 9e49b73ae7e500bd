"""The document of a run in MongoDB, made from its folder within MongoDB's limits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import bson

from sacristan.observers.mongo.documents import ENTRY_BYTES, LIST_BYTES, Packer, files_in, object_id
from sacristan.observers.mongo.layout import Document
from sacristan.observers.record.files import open_regular, read_regular
from sacristan.observers.record.identity import last_beat
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.schema import (
    CONFIG,
    INFO,
    LEASE,
    OUTPUT,
    PROVENANCE,
    SUMMARY,
    rank_files,
    read_json,
)

__all__ = [
    "OUTPUT_HEAD_BYTES",
    "OUTPUT_TAIL_BYTES",
    "RunDocument",
    "exact_part",
    "exact_time",
    "output_sizes",
    "shortened_output",
]

OUTPUT_HEAD_BYTES = OUTPUT_TAIL_BYTES = 64 * 1024
# Entries of run.json that the document has in another form, or not at all.
_NOT_AS_THEY_ARE = (
    *("uid", "experiment", "resources", "artifacts", "artifact_details", "command_line", "fail_trace"),
    *("artifacts_logged", "artifacts_used", "artifact_paths", "earlier_artifacts", "rewinding"),
)
_TIMES = ("start_time", "stop_time", "heartbeat", "queue_time")
# Files that are stored once more as they are, if their packed form is not exact.
_EXACT_PARTS = {"config": CONFIG, "info": INFO}


class RunDocument:
    """Makes the document of one run from its folder.

    The owner updates `folder` if that is moved. `packer` has the files of large entries.
    """

    def __init__(self, folder: Path, uid: str) -> None:
        self.folder = folder
        self.packer = Packer(uid)
        # By file name: a stamp that changes with the file, its packed content, the files of its large entries, and the
        # stand-in for the original, if the packed content is not exact.
        self._entries: dict[str, tuple[tuple[int, ...], Any, dict[bson.ObjectId, bytes], Document | None]] = {}

    def build(self, run: Mapping[str, Any], metric_names: Iterable[str]) -> Document:
        """Return the document of the run as its folder is now, without the lists of files.

        Large entries are stand-ins, whose files are in `packer`. `metric_names` are those that readers may list,
        because they have points in the database.
        """
        packer = self.packer
        packer.files.clear()
        kept = {key: value for key, value in run.items() if key not in (*_NOT_AS_THEY_ARE, *_TIMES)}
        document = {key: packer.entry(value) for key, value in kept.items()} | _times(run)
        lease = None
        with contextlib.suppress(ValueError):  # a power cut may have emptied it
            lease = read_json(self.folder / LEASE)
        if isinstance(lease, dict):
            document["lease"] = packer.entry(lease)
            beat = last_beat(lease)
            if document.get("status") == "RUNNING" and beat is not None:
                document["heartbeat"] = beat
        document |= self._exact(kept, run)
        for key in ("command_line", "fail_trace"):
            if isinstance(run.get(key), list):
                document |= packer.list_entry(key, run[key], ENTRY_BYTES)
        document |= {"config": self._entry(CONFIG), "info": self._info(metric_names), "summary": self._entry(SUMMARY)}
        document["captured_out"] = shortened_output(self.folder)
        document.setdefault("result", None)
        if (self.folder / PROVENANCE).exists():
            document["provenance"] = self._entry(PROVENANCE)
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
                limit = LIST_BYTES if name == SUMMARY else ENTRY_BYTES
                self._entries[name] = (stamp, *self._pack_file(read_regular(path), limit))
        except FileNotFoundError:
            return {}
        _, packed, files, _ = self._entries[name]
        self.packer.files |= files
        return packed

    def _exact(self, entries: Mapping[str, Any], run: Mapping[str, Any]) -> Document:
        """Return the original of parts and entries whose stored form is not exact; see `exact_part`."""
        found: Document = {}
        for part, name in _EXACT_PARTS.items():
            self._entry(name)
            if name in self._entries and self._entries[name][3] is not None:
                found[part] = self._entries[name][3]
        odd = {}
        for key, value in entries.items():
            packer = Packer(self.packer.uid)
            packer.entry(value)
            if not packer.is_exact:
                odd[key] = value
        if odd:
            found["run"] = self.packer.whole_file(json.dumps(odd, default=str).encode())
        times = {key: run[key] for key in _times(run) if datetime.fromisoformat(run[key]).microsecond % 1000}
        return ({"exact": found} if found else {}) | ({"microseconds": times} if times else {})

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
        return {**self._entry(INFO), **(self.packer.list_entry("metrics", listed) if listed else {})}


def exact_part(stored: Any, exact: Any, uid: str) -> Any:
    """Return a part of a document as it was recorded: `exact` if `stored` was made from it, otherwise `stored`.

    In the second case `stored` was changed later, such as by `sacristan reap`, or is newer than the original.
    """
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
        return (folder / OUTPUT).stat().st_size
    return 0


def output_sizes(folder: Path) -> list[int]:
    """Return the bytes of output of each process of a run, rank 0 first; they change with any new output."""
    return [output_size(folder), *(path.stat().st_size for path in rank_files(folder).values())]


def shortened_output(folder: Path) -> str:
    """Return a run's captured output; of more than 128 KiB, the first and last 64 with a note between them.

    Bytes that are not UTF-8 are replaced.
    """
    size = output_size(folder)
    if not size:
        return ""
    with open_regular(folder / OUTPUT) as stream:
        if size <= OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES:
            return stream.read().decode("utf-8", "replace")
        head = stream.read(OUTPUT_HEAD_BYTES).decode("utf-8", "replace")
        stream.seek(size - OUTPUT_TAIL_BYTES)
        tail = stream.read().decode("utf-8", "replace")
    left_out = size - OUTPUT_HEAD_BYTES - OUTPUT_TAIL_BYTES
    return f"{head}\n... {left_out} bytes left out here; all of it is stored as a file when the run ends ...\n{tail}"


def _times(run: Mapping[str, Any]) -> dict[str, datetime]:
    return {key: datetime.fromisoformat(run[key]) for key in _TIMES if isinstance(run.get(key), str)}
