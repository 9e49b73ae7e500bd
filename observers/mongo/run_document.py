"""The document of a run: made from its folder within MongoDB's bounds, and sent as far as it changed."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import bson
from pymongo.errors import DuplicateKeyError

from observers.mongo.contents import Contents
from observers.mongo.documents import ENTRY_BYTES, LIST_BYTES, Packer, files_in, object_id
from observers.mongo.layout import Collections, Document
from observers.record.identity import last_beat
from observers.record.json_text import parse_json
from observers.record.regular_file import open_regular, read_regular
from observers.record.schema import (
    CONFIG,
    INFO,
    LEASE,
    OUTPUT,
    PROVENANCE,
    RANKS_FOLDER,
    RUN,
    SUMMARY,
    VALUES,
    checkpoint_files,
    rank_files,
    read_json,
)
from observers.record.storable import storable_text

__all__ = ["OUTPUT_HEAD_BYTES", "OUTPUT_TAIL_BYTES", "DocumentDelivery", "is_running", "shortened_output"]

_log = logging.getLogger(__name__)

OUTPUT_HEAD_BYTES = OUTPUT_TAIL_BYTES = 64 * 1024
# An entry of 20 MB that changes with each heartbeat is not sent with each heartbeat.
LARGE_FILES_EVERY_S = 30.0
# Entries of run.json that get into the document in a form of their own, or not at all.
_NOT_AS_THEY_ARE = (
    *("uid", "experiment", "resources", "artifacts", "artifact_details", "command_line", "fail_trace"),
    *("artifacts_logged", "artifacts_used", "artifact_paths", "earlier_artifacts", "rewinding"),
)
# Entries of a run that has ended; one that is resumed loses them.
_OF_AN_END = (
    *("stop_time", "fail_trace", "fail_trace_file", "lost_artifacts", "lost_bytes", "lost_media", "lost_parts"),
    *("lost_points", "lost_resources", "lost_sources", "damaged_points", "unwritten_points"),
    *("captured_out_file", "values_file", "rank_outputs"),
)
_TIMES = ("start_time", "stop_time", "heartbeat", "queue_time")
# The files of which one that cannot be told from its stored form is kept as it is.
_EXACT_PARTS = {"config": CONFIG, "info": INFO}


def is_running(run: Mapping[str, Any]) -> bool:
    """Tell whether somebody will go on writing a run, as far as its `run.json` tells."""
    return run["status"] in ("RUNNING", "QUEUED")


class RunDocument:
    """Makes the document of one run from its folder.

    Attributes:
        packer: Has the files of large entries.
    """

    def __init__(self, folder: Path, uid: str) -> None:
        self.folder = folder
        self.packer = Packer(uid)
        # By file name: what tells whether the file changed, its packed content, the files of its large entries, and the
        # stand-in for the file as it is, where that cannot be told from what was made of it.
        self._entries: dict[str, tuple[tuple[int, ...], Any, dict[bson.ObjectId, bytes], Document | None]] = {}

    def build(self, run: Mapping[str, Any], metric_names: Iterable[str]) -> Document:
        """Return the document, but for the lists of the run's files."""
        packer = self.packer
        packer.files.clear()
        kept = {key: value for key, value in run.items() if key not in (*_NOT_AS_THEY_ARE, *_TIMES)}
        document = {key: packer.entry(value) for key, value in kept.items()} | _times(run)
        lease = None
        with contextlib.suppress(ValueError):  # a power cut may have taken what was in it
            lease = read_json(self.folder / LEASE)
        if isinstance(lease, dict):
            document["lease"] = packer.entry(lease)
            beat = last_beat(lease)
            if document.get("status") == "RUNNING" and beat is not None:
                document["heartbeat"] = beat
        document |= self._exact(kept, run)
        for key in ("command_line", "fail_trace"):
            if isinstance(run.get(key), list):
                document |= packer.listed(key, run[key], ENTRY_BYTES)
        document |= {"config": self._entry(CONFIG), "info": self._info(metric_names), "summary": self._entry(SUMMARY)}
        document["captured_out"] = shortened_output(self.folder)
        document.setdefault("result", None)
        if (self.folder / PROVENANCE).exists():
            document["provenance"] = self._entry(PROVENANCE)
        experiment = {key: value for key, value in run["experiment"].items() if key != "sources"}
        document["experiment"] = {**packer.entry(experiment), "sources": []}
        return {**document, "resources": [], "artifacts": []}

    def _entry(self, name: str) -> Any:
        """Return what the JSON file `name` holds, packed; one that did not change is not read again."""
        path = self.folder / name
        try:
            stat = path.stat()
            stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if name not in self._entries or self._entries[name][0] != stamp:
                # The summary is what runs are sorted by, also with thousands of metrics.
                limit = LIST_BYTES if name == SUMMARY else ENTRY_BYTES
                self._entries[name] = (stamp, *self._pack_file(read_regular(path), limit))
        except FileNotFoundError:
            return {}
        _, packed, files, _ = self._entries[name]
        self.packer.files |= files
        return packed

    def _exact(self, entries: Mapping[str, Any], run: Mapping[str, Any]) -> Document:
        """Return what tells parts and entries of a run exactly whose stored form does not; see `exact_part`."""
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
        except ValueError:  # more levels or digits than are read
            packed = packer.whole_file(raw)
        exact = None if packer.is_exact else packer.whole_file(raw)
        kept = set(files_in([packed, exact]))
        return packed, {key: content for key, content in packer.files.items() if key in kept}, exact

    def _info(self, metric_names: Iterable[str]) -> Document:
        """Return the run's info with Sacred's list of its metrics, by which its readers find them."""
        listed = [{"name": name, "id": str(object_id(self.packer.uid, name))} for name in sorted(metric_names)]
        return {**self._entry(INFO), **(self.packer.listed("metrics", listed) if listed else {})}


def exact_part(stored: Any, exact: Any, uid: str) -> Any:
    """Return a part of a document as it was recorded: `exact`, if `stored` was made of it, else what is stored.

    It was not where the part was changed later, such as by `runs reap`, or is ahead of its file.
    """
    if not isinstance(stored, Mapping) or not isinstance(exact, Mapping):
        return stored
    packed = Packer(uid).entry(exact)
    own = {key: value for key, value in stored.items() if key != "metrics"}
    is_same = isinstance(packed, Mapping) and packed == own
    return exact if is_same or packed == stored else stored


def exact_time(stored: Any, text: Any) -> Any:
    """Return a time to the microsecond, as text, if it is the stored one, else that."""
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return stored
    return text if time.replace(microsecond=time.microsecond // 1000 * 1000) == stored else stored


def output_size(folder: Path) -> int:
    """Return the length of a run's captured output."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / OUTPUT).stat().st_size
    return 0


def output_sizes(folder: Path) -> list[int]:
    """Return the lengths of what each process of a run wrote, by their rank."""
    return [output_size(folder), *(path.stat().st_size for path in rank_files(folder).values())]


def shortened_output(folder: Path) -> str:
    """Return a run's captured output; of a long one head and tail, with a line between them that says so."""
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


class DocumentDelivery:
    """Sends the document of one run, and the files that only this run has.

    Args:
        folder: The run's folder.
        base: The folder that stored sources and resources are named from.
        collections: Where to.
        contents: Stores files.
        uid: The run's uid.
        with_checkpoints: Whether the checkpoints that it keeps are delivered, too, once it has ended.

    Attributes:
        run_id: The document's `_id`; None before it is found or inserted.
    """

    def __init__(
        self,
        folder: Path,
        base: Path,
        collections: Collections,
        contents: Contents,
        uid: str,
        *,
        with_checkpoints: bool = False,
    ) -> None:
        self.with_checkpoints = with_checkpoints
        self.folder = folder
        self.base = base
        self.collections = collections
        self.contents = contents
        self.uid = uid
        self.run_id: Any = None
        self._document = RunDocument(folder, uid)
        self._sent: Document = {}
        self._sent_outputs: list[int] | None = None
        self._owned: set[Any] = set()
        self._gone: list[str] = []
        # Artifacts that were said not to be there.
        self._said: set[str] = set()
        self._large_files_at = 0.0

    def follow(self, folder: Path) -> None:
        """Go on with the same record, which is in `folder` now."""
        self.folder = self._document.folder = folder

    @property
    def sent(self) -> Mapping[str, Any]:
        """The entries that were sent, as they are stored."""
        return self._sent

    def restart(self) -> None:
        """Forget what was sent: somebody took something away."""
        self._sent.clear()
        self._sent_outputs = None

    def find(self) -> bool:
        """Look for the document by the run's uid; return whether it is there."""
        found = self.collections.runs.find_one({"uid": self.uid}, {"_id": 1})
        self.run_id = found["_id"] if found else None
        return found is not None

    def insert(self, run: Mapping[str, Any], wanted_id: int | str | None = None) -> None:
        """Insert the document under the wanted `_id` if that is free, else under the next number."""
        runs = self.collections.runs
        while True:
            number: Any = wanted_id
            if number is None:
                newest = runs.find_one({"_id": {"$type": "number"}}, {"_id": 1}, sort=[("_id", -1)])
                number = int(newest["_id"]) + 1 if newest else 1
            try:
                document = self._document.build(run, ())
                self._store_entries(document)
                runs.insert_one({"_id": number, "uid": self.uid, **document})
            except DuplicateKeyError:
                if self.find():  # another process has delivered the same run
                    return
                if isinstance(wanted_id, str):
                    _log.warning("MongoDB has another run of the id %r; this one gets the next number", wanted_id)
                wanted_id = None
            else:
                self.run_id = number
                return

    def is_sent(self, run: Mapping[str, Any]) -> bool:
        """Tell whether the document is as `run.json` and the captured output are now."""
        return (
            self._sent.get("status") == run["status"]
            and self._sent.get("revision", 0) == run.get("revision", 0)
            and self._sent_outputs == output_sizes(self.folder)
        )

    def send(
        self,
        run: Mapping[str, Any],
        metric_names: Iterable[str],
        artifact_lists: Mapping[str, list[Document]],
        *,
        last: bool,
    ) -> None:
        """Send what changed.

        Args:
            run: What stands in `run.json`.
            metric_names: Metrics that have points in the database.
            artifact_lists: The artifacts that the run logged and used, as far as they are delivered.
            last: Whether nobody will write to the folder any more, whatever its status says.

        Raises:
            FileNotFoundError: If the folder was moved or deleted meanwhile. Nothing of it was sent.
        """
        ended = last or not is_running(run)
        sizes = output_sizes(self.folder)
        document = self._document.build(run, metric_names)
        own_files = self._add_lists(document, run, artifact_lists)
        if ended:
            document |= self._files_of_an_end(sizes[0])
            document |= self._kept_checkpoints()
        if not (self.folder / RUN).exists():  # so files that were not found may be elsewhere
            raise FileNotFoundError(errno.ENOENT, "the run's folder is gone", str(self.folder))
        changed = {key: value for key, value in document.items() if self._sent.get(key, document) != value}
        if not ended:
            changed = self._without_early(changed)
        self._store_entries(changed)
        self._update(document, changed)
        self._sent = {name: value for name, value in {**self._sent, **changed}.items() if name in document}
        self._sent_outputs = sizes
        owned: set[Any] = {
            *own_files,
            *self._checkpoint_ids(document),
            *files_in(self._sent),
            document.get("captured_out_file"),
            document.get("values_file"),
            *(entry["file_id"] for entry in document.get("rank_outputs", ())),
        }
        if owned != self._owned:
            self.contents.drop_others(self.uid, owned)
            self._owned = owned

    def _add_lists(
        self, document: Document, run: Mapping[str, Any], artifact_lists: Mapping[str, list[Document]]
    ) -> set[bson.ObjectId]:
        """Add the lists of files, after storing these; return the ids of those that are the run's alone."""
        packer = self._document.packer
        document["experiment"] |= packer.listed("sources", self._shared(run["experiment"]["sources"]))
        document |= packer.listed("resources", self._shared(run.get("resources", ())))
        artifacts, own_files = self._artifacts(run)
        document |= packer.listed("artifacts", artifacts)
        for name, entries in artifact_lists.items():
            document |= packer.listed(name, entries)
        return own_files

    def _files_of_an_end(self, output_size: int) -> Document:
        """Store the files that a run has once it has ended, and return the entries that name them."""
        entries: Document = {}
        if output_size > OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES:
            entries["captured_out_file"] = self.contents.store(self.folder / OUTPUT, OUTPUT, owner=self.uid)
        if (self.folder / VALUES).exists():
            entries["values_file"] = self.contents.store(self.folder / VALUES, VALUES, owner=self.uid)
        outputs = [
            {"rank": rank, "file_id": self.contents.store(path, f"{RANKS_FOLDER}/{path.name}", owner=self.uid)}
            for rank, path in rank_files(self.folder).items()
        ]
        outputs = [entry for entry in outputs if entry["file_id"] is not None]
        return entries | ({"rank_outputs": outputs} if outputs else {})

    def _kept_checkpoints(self) -> Document:
        if not self.with_checkpoints:
            return {}
        stored = [
            {"name": name, "file_id": self.contents.store(path, name, owner=self.uid)}
            for name, path in checkpoint_files(self.folder)
        ]
        return {"checkpoints": [entry for entry in stored if entry["file_id"] is not None]} if stored else {}

    def _checkpoint_ids(self, document: Document) -> set[Any]:
        """Return the files of the checkpoints in the database; those that were delivered by others, too."""
        if "checkpoints" not in document:
            found = self.collections.runs.find_one({"_id": self.run_id}, {"checkpoints": 1})
            document = found or {}
        listed = document.get("checkpoints")
        return {one.get("file_id") for one in listed if isinstance(one, dict)} if isinstance(listed, list) else set()

    def _update(self, document: Document, changed: Document) -> None:
        """Change the document in the database; entries of an end go where the run has been resumed."""
        gone = [name for name in _OF_AN_END if name not in document and name not in self._gone]
        if changed or gone:
            change = {"$set": changed, "$unset": dict.fromkeys(gone, "")}
            change = {operator: entries for operator, entries in change.items() if entries}
            self.collections.runs.update_one({"_id": self.run_id, "uid": self.uid}, change)
            self._gone = [*(name for name in self._gone if name not in document), *gone]

    def _without_early(self, changed: Document) -> Document:
        """Return `changed` without entries that would need a large file so soon after another; they wait."""
        if time.monotonic() >= self._large_files_at:
            return changed
        return {key: value for key, value in changed.items() if all(map(self.contents.holds, files_in(value)))}

    def _store_entries(self, document: Document) -> None:
        """Store the files that stand-ins in `document` stand for."""
        files = self._document.packer.files
        for file_id in set(files_in(document)) & files.keys():
            if not self.contents.holds(file_id):
                self.contents.put(file_id, files[file_id], "entry.json", self.uid)
                self._large_files_at = time.monotonic() + LARGE_FILES_EVERY_S

    def _shared(self, named: Iterable[Sequence[str]]) -> list[list[Any]]:
        stored = [[name, self.contents.store(self.base / where, name, kept_as=where)] for name, where in named]
        # Omniboard ends with an error where a file has no id.
        return [[name, file_id] for name, file_id in stored if file_id is not None]

    def _artifacts(self, run: Mapping[str, Any]) -> tuple[list[Document], set[bson.ObjectId]]:
        """Return name and file of each artifact, also of those that are in the database only by now, and all files."""
        found: list[Document] = []
        files: set[bson.ObjectId] = set()
        for name, path, details in self._logged(run):
            fields = {"metadata": self._document.packer.entry(details.get("metadata"))}
            self._store_entries(fields)
            files |= set(files_in(fields))
            if details.get("content_type"):
                fields["contentType"] = str(details["content_type"])
            # Sacred's name, which incense takes apart.
            filename = f"artifact://{self.collections.runs.name}/{self.run_id}/{name}"
            file_id = self.contents.store(path, filename, owner=self.uid, **fields)
            if file_id is None:
                file_id = self._delivered_artifacts().get(storable_text(name))
            if file_id is not None:
                found.append({"name": name, "file_id": file_id})
                files.add(file_id)
            elif name not in self._said:
                self._said.add(name)
                _log.error("artifact %r is not delivered to MongoDB: %s no longer exists", name, path)
        return found, files

    def _logged(self, run: Mapping[str, Any]) -> Iterator[tuple[str, Path, Mapping[str, Any]]]:
        """Yield name, file and details of each artifact; of a name that was logged twice in that order."""
        for entry in run.get("earlier_artifacts", ()):
            yield entry["name"], self.folder / entry["file"], entry
        for name in run.get("artifacts", ()):
            path = Path(run.get("artifact_paths", {}).get(name, self.folder / name))
            yield name, path, run.get("artifact_details", {}).get(name, {})

    def _delivered_artifacts(self) -> dict[str, Any]:
        known = self.collections.runs.find_one({"_id": self.run_id}, {"artifacts": 1}) or {}
        return {file["name"]: file["file_id"] for file in known.get("artifacts", ())}
