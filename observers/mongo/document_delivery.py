"""Sending the document of a run to MongoDB, as far as it has changed, with the files that belong to the run alone."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
from pymongo.errors import DuplicateKeyError, OperationFailure

from sacristan.observers.mongo import documents
from sacristan.observers.mongo.contents import Shipment
from sacristan.observers.mongo.layout import Document
from sacristan.observers.record import schema
from sacristan.observers.record.identity import true_status
from sacristan.observers.record.json_text import storable_text

_log = logging.getLogger(__name__)

# A large entry that changes with each heartbeat is not sent with each heartbeat.
LARGE_FILES_EVERY_S = 30.0
# Entries of a run that has ended; they are removed if it is resumed.
_OF_AN_END = (
    *("stop_time", "fail_trace", "fail_trace_file", "lost_artifacts", "lost_bytes", "lost_media", "lost_parts"),
    *("lost_points", "lost_resources", "lost_sources", "damaged_points", "unwritten_points"),
    *("captured_out_file", "values_file", "rank_outputs"),
)
# Further entries of some runs; they are removed if another run takes the document over. What people noted stays.
_OF_SOME_RUNS = (
    *(
        "artifacts_aliased",
        "artifacts_file",
        "artifacts_logged",
        "artifacts_logged_file",
        "artifacts_used",
        "artifacts_used_file",
    ),
    *("checkpoints", "command_line_file", "exact", "lease", "microseconds", "parent", "provenance", "reproductions"),
    *("resources_file", "sessions", "states_folder"),
)


class NotTakenOverError(Exception):
    """A document belongs to another run; the message says why."""


# Entries that tell whether another run has a document.
_OF_AN_OWNER = ("uid", "start_time", "stop_time", "heartbeat", "lease", "meta.options", "trash", "removing")


def _obstacle(stored: Document, run: Mapping[str, Any]) -> str:
    """Return why a run may not take over a document; empty if it was staged, or its run had ended before this one."""
    if "trash" in stored or "removing" in stored:
        return "it is in the trash"
    if "parent" in run and run["parent"] != run.get("meta", {}).get("started_from"):
        return "a fork, a reproduction or a child of another run overwrites nothing"
    if not stored.get("uid") and not stored.get("heartbeat"):
        return ""
    ended = stored.get("stop_time")
    if ended is None:
        if true_status({**stored, "status": "RUNNING"}, stored.get("lease")) == "RUNNING":
            return "another process is recording it"
        ended = stored.get("heartbeat")
    started = datetime.fromisoformat(run.get("start_time") or run["queue_time"])
    if stored.get("uid") and isinstance(ended, datetime) and ended.replace(tzinfo=None) > started.replace(tzinfo=None):
        return "another run has been recorded there since this one started"
    return ""


def is_running(run: Mapping[str, Any]) -> bool:
    """Tell by its status alone whether a process may still write a run: a killed one still says RUNNING."""
    return run["status"] in ("RUNNING", "QUEUED")


class DocumentDelivery:
    """Sends a run's document, and the files that only it has; `sent` has the entries as they are stored."""

    def __init__(self, shipment: Shipment, *, with_checkpoints: bool = False) -> None:
        self._run = shipment
        self._with_checkpoints = with_checkpoints
        self._document = documents.RunDocument(shipment.folder, shipment.uid)
        self.sent: Document = {}
        self._sent_outputs: list[int] | None = None
        self._owned: set[Any] = set()
        self._gone: list[str] = []
        # Missing artifacts that were reported.
        self._reported: set[str] = set()
        self._large_files_at = 0.0

    def restart(self) -> None:
        """Forget what was sent, because something was removed from the database."""
        self.sent.clear()
        self._sent_outputs = None

    def find(self) -> bool:
        """Look for the document by the run's uid; return whether it exists."""
        document = self._run.collections.runs.find_one({"uid": self._run.uid}, {"_id": 1})
        self._run.run_id = document["_id"] if document else None
        return document is not None

    def insert(self, run: Mapping[str, Any], wanted_id: int | str | None = None) -> None:
        """Insert the document under `wanted_id` if that is free, otherwise under the next number."""
        runs = self._run.collections.runs
        while True:
            number: Any = wanted_id
            if number is None:
                newest = runs.find_one({"_id": {"$type": "number"}}, {"_id": 1}, sort=[("_id", -1)])
                number = int(newest["_id"]) + 1 if newest else 1
            try:
                document = self._document.build(run, ())
                self._store_entries(document)
                notes = schema.read_json_if_whole(self._run.folder / schema.NOTES) or {}
                runs.insert_one({"_id": number, "uid": self._run.uid, **notes, **document})
            except DuplicateKeyError:
                if self.find():  # another process has delivered the same run
                    return
                if isinstance(wanted_id, str):
                    _log.warning("MongoDB has another run of the id %r; this one gets the next number", wanted_id)
                wanted_id = None
            else:
                self._run.run_id = number
                return

    def take_over(self, run: Mapping[str, Any], number: int) -> bool:
        """Take over a document, keeping others' entries; return whether it exists, or raise NotTakenOverError."""
        runs = self._run.collections.confirmed.runs
        document = self._document.build(run, ())
        while stored := runs.find_one({"_id": number}, dict.fromkeys(_OF_AN_OWNER, 1)):
            if reason := _obstacle(stored, run):
                raise NotTakenOverError(reason)
            self._store_entries(document)
            same = {"_id": number, **{name: stored.get(name) for name in ("uid", "stop_time")}}
            # As of an older record, if there are points or media of an earlier run, which are then removed.
            has_earlier = self._has_points(number)
            older = {"revision": run.get("revision", 0) - has_earlier, "rewinding": False}
            gone = [name for name in (*_OF_AN_END, *_OF_SOME_RUNS) if name not in document]
            change = {"$set": {**document, "uid": self._run.uid, **older}, "$unset": dict.fromkeys(gone, "")}
            try:
                is_taken = runs.update_one(same, change).matched_count
            except DuplicateKeyError:  # another process has delivered the same run
                return self.find()
            if is_taken:
                self._run.run_id = number
                self._forget(stored)
                return True
        return False

    def _has_points(self, number: int) -> bool:
        """Tell whether an earlier run has left points or media, which the user must be allowed to remove."""
        collections = self._run.collections.metrics, self._run.collections.chunks, self._run.collections.media
        holding = [collection for collection in collections if collection.find_one({"run_id": number}, {"_id": 1})]
        try:
            for collection in holding:
                collection.delete_one({"_id": bson.ObjectId()})  # there is no such document
        except OperationFailure as error:
            if error.code == 13:
                raise NotTakenOverError("the user may not remove the points of its earlier run") from error
            raise
        return bool(holding)

    def _forget(self, stored: Document) -> None:
        """Remove the files of the earlier run of a document, and note that it is not to be sent again."""
        if not isinstance(stored.get("uid"), str):
            return
        self._run.contents.drop_others(stored["uid"], ())
        if stored.get("stop_time") is None:
            return  # killed: the database may lack a part of it, which goes to another document
        note = {"run_id": stored["_id"], "at": datetime.now(UTC)}
        try:
            self._run.collections.confirmed.removed.update_one({"_id": stored["uid"]}, {"$set": note}, upsert=True)
        except OperationFailure as error:
            if error.code != 13:  # the user may only read that collection
                raise

    def is_sent(self, run: Mapping[str, Any]) -> bool:
        """Tell whether the document matches `run.json` and the captured output."""
        return (
            self.sent.get("status") == run["status"]
            and self.sent.get("revision", 0) == run.get("revision", 0)
            and self._sent_outputs == documents.output_sizes(self._run.folder)
        )

    def send(
        self,
        run: Mapping[str, Any],
        metric_names: Iterable[str],
        artifact_lists: Mapping[str, list[Document]],
        *,
        last: bool,
    ) -> None:
        """Send what has changed, or raise FileNotFoundError if the folder moved; after `last`, no process writes."""
        ended = last or not is_running(run)
        sizes = documents.output_sizes(self._run.folder)
        self._document.folder = self._run.folder
        document = self._document.build(run, metric_names)
        own_files = self._add_lists(document, run, artifact_lists)
        if ended:
            document |= self._files_of_an_end(sizes[0])
            document |= self._kept_checkpoints()
        if not (self._run.folder / schema.RUN).exists():  # files that were not found may be elsewhere
            raise FileNotFoundError(errno.ENOENT, "the run's folder is gone", str(self._run.folder))
        changed = {key: value for key, value in document.items() if self.sent.get(key, document) != value}
        if not ended:
            changed = self._without_early(changed)
        self._store_entries(changed)
        self._update(document, changed)
        self.sent = {name: value for name, value in {**self.sent, **changed}.items() if name in document}
        self._sent_outputs = sizes
        owned: set[Any] = {
            *own_files,
            *self._checkpoint_ids(document),
            *documents.files_in(self.sent),
            document.get("captured_out_file"),
            document.get("values_file"),
            *(entry["file_id"] for entry in document.get("rank_outputs", ())),
        }
        if owned != self._owned:
            self._run.contents.drop_others(self._run.uid, owned)
            self._owned = owned

    def _add_lists(
        self, document: Document, run: Mapping[str, Any], artifact_lists: Mapping[str, list[Document]]
    ) -> set[bson.ObjectId]:
        """Add the lists of files, after storing the files; return the ids of those that belong to the run alone."""
        packer = self._document.packer
        document["experiment"] |= packer.list_entry("sources", self._shared(run["experiment"]["sources"]))
        document |= packer.list_entry("resources", self._shared(run.get("resources", ())))
        artifacts, own_files = self._artifacts(run)
        document |= packer.list_entry("artifacts", artifacts)
        for name, entries in artifact_lists.items():
            document |= packer.list_entry(name, entries)
        return own_files

    def _files_of_an_end(self, output_size: int) -> Document:
        """Store the files of a run that has ended, and return the entries that name them."""
        entries: Document = {}
        if output_size > documents.OUTPUT_HEAD_BYTES + documents.OUTPUT_TAIL_BYTES:
            entries["captured_out_file"] = self._run.store(self._run.folder / schema.OUTPUT, schema.OUTPUT)
        if (self._run.folder / schema.VALUES).exists():
            entries["values_file"] = self._run.store(self._run.folder / schema.VALUES, schema.VALUES)
        outputs = [
            {
                "rank": rank,
                "file_id": self._run.store(path, f"{schema.RANKS_FOLDER}/{path.name}"),
            }
            for rank, path in schema.rank_files(self._run.folder).items()
        ]
        outputs = [entry for entry in outputs if entry["file_id"] is not None]
        return entries | ({"rank_outputs": outputs} if outputs else {})

    def _kept_checkpoints(self) -> Document:
        if not self._with_checkpoints:
            return {}
        stored = [
            {"name": name, "file_id": self._run.store(path, name)}
            for name, path in schema.checkpoint_files(self._run.folder)
        ]
        return {"checkpoints": [entry for entry in stored if entry["file_id"] is not None]} if stored else {}

    def _checkpoint_ids(self, document: Document) -> set[Any]:
        """Return the files of the checkpoints in the database, including those that others delivered."""
        if "checkpoints" not in document:
            stored = self._run.collections.runs.find_one({"_id": self._run.run_id}, {"checkpoints": 1})
            document = stored or {}
        listed = document.get("checkpoints")
        return (
            {entry.get("file_id") for entry in listed if isinstance(entry, dict)} if isinstance(listed, list) else set()
        )

    def _update(self, document: Document, changed: Document) -> None:
        """Update the document in the database; if the run was resumed, remove the entries of its end."""
        gone = [name for name in _OF_AN_END if name not in document and name not in self._gone]
        if changed or gone:
            change = {"$set": changed, "$unset": dict.fromkeys(gone, "")}
            change = {operator: entries for operator, entries in change.items() if entries}
            self._run.collections.runs.update_one({"_id": self._run.run_id, "uid": self._run.uid}, change)
            self._gone = [*(name for name in self._gone if name not in document), *gone]

    def _without_early(self, changed: Document) -> Document:
        """Leave out entries that would send a large file too soon after another one; they wait."""
        if time.monotonic() >= self._large_files_at:
            return changed
        return {
            key: value
            for key, value in changed.items()
            if all(map(self._run.contents.holds, documents.files_in(value)))
        }

    def _store_entries(self, document: Document) -> None:
        """Store the files of the stand-ins in `document`."""
        files = self._document.packer.files
        for file_id in set(documents.files_in(document)) & files.keys():
            if not self._run.contents.holds(file_id):
                self._run.contents.put(file_id, files[file_id], "entry.json", self._run.uid)
                self._large_files_at = time.monotonic() + LARGE_FILES_EVERY_S

    def _shared(self, named: Iterable[Sequence[str]]) -> list[list[Any]]:
        stored = [
            [name, self._run.contents.store(self._run.base / where, name, kept_as=where)] for name, where in named
        ]
        # Omniboard fails if a file has no id.
        return [[name, file_id] for name, file_id in stored if file_id is not None]

    def _artifacts(self, run: Mapping[str, Any]) -> tuple[list[Document], set[bson.ObjectId]]:
        """Return name and file of each artifact, even if only the database still has the file, and all files."""
        artifacts: list[Document] = []
        files: set[bson.ObjectId] = set()
        for name, path, details in self._logged(run):
            fields = {"metadata": self._document.packer.entry(details.get("metadata"))}
            self._store_entries(fields)
            files |= set(documents.files_in(fields))
            if details.get("content_type"):
                fields["contentType"] = str(details["content_type"])
            # Sacred's name, which incense parses.
            filename = f"artifact://{self._run.collections.runs.name}/{self._run.run_id}/{name}"
            file_id = self._run.store(path, filename, **fields)
            if file_id is None:
                file_id = self._delivered_artifacts().get(storable_text(name))
            if file_id is not None:
                artifacts.append({"name": name, "file_id": file_id})
                files.add(file_id)
            elif name not in self._reported:
                self._reported.add(name)
                _log.error("artifact %r is not delivered to MongoDB: %s no longer exists", name, path)
        return artifacts, files

    def _logged(self, run: Mapping[str, Any]) -> Iterator[tuple[str, Path, Mapping[str, Any]]]:
        """Yield name, file and details of each artifact; all files of a name that was logged twice, in that order."""
        for entry in run.get("earlier_artifacts", ()):
            yield entry["name"], self._run.folder / entry["file"], entry
        for name in run.get("artifacts", ()):
            path = Path(run.get("artifact_paths", {}).get(name, self._run.folder / name))
            yield name, path, run.get("artifact_details", {}).get(name, {})

    def _delivered_artifacts(self) -> dict[str, Any]:
        stored = self._run.collections.runs.find_one({"_id": self._run.run_id}, {"artifacts": 1}) or {}
        return {file["name"]: file["file_id"] for file in stored.get("artifacts", ())}
