"""Removing runs from a database.

First of all the run's document says REMOVING and loses its uid, so that from then on nobody takes it for a whole run,
and last of all it goes, so that nobody takes its `_id` while anything is left under it. What is killed in between is
finished by the next removal. The collection `removed` notes uids, so that a run is not delivered again, and contents
that are about to go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import bson

from observers.mongo.documents import object_id
from observers.mongo.layout import may_name_files
from observers.record.json_text import parse_json
from runs.errors import StoreError
from runs.stores.mongo.database import MongoDatabase
from runs.stores.removing import Removed
from runs.stores.run import REMOVING

__all__ = ["DISCARDED", "IN_TRASH", "TRASH", "Remover"]

DISCARDED, TRASH = "DISCARDED", "trash"
IN_TRASH: dict[str, Any] = {TRASH: {"$exists": True}}
# Entries that name files of their own run alone.
_OWN = ("config", "info", "summary", "provenance", "captured_out", "host", "meta", "lease")
_NOTED = 100_000
# Owners of what is of no one run: large entries of media and of artifacts.
_SHARED_OWNERS = ("media", "artifacts")


class Remover:
    """Removes runs from a database."""

    def __init__(self, mongo: MongoDatabase) -> None:
        self.mongo = mongo
        self.database = mongo.database
        self.runs, self.metrics, self.chunks = mongo.runs, mongo.metrics, mongo.chunks
        self.media, self.removed = mongo.media, mongo.collections.removed
        self.files, self.pieces = mongo.collections.files, mongo.collections.file_chunks

    def remove(self, key: Any) -> None:
        """Remove a run's document and all that is the run's alone; repeated, it finishes what was begun.

        Raises:
            StoreError: If the run is gone, or came to life in the meantime.
        """
        document = self._document(key)
        if not document.get("removing"):
            self._mark(document, {"status": REMOVING, "removing": {"uid": document.get("uid")}})
        self._finish(key)

    def _document(self, key: Any) -> dict[str, Any]:
        document = self.runs.find_one({"_id": key}, {"uid": 1, "lease": 1, "status": 1, "removing": 1})
        if document is None:
            raise StoreError(f"run {key} is no longer in {self.mongo.where}")
        return document

    def _mark(self, document: Mapping[str, Any], marks: Mapping[str, Any]) -> None:
        """Let nobody take a run for one, nor deliver it again."""
        key, uid = document["_id"], document.get("uid")
        if isinstance(uid, str):
            note = {"run_id": key, "at": datetime.now(UTC)}
            self.removed.update_one({"_id": uid}, {"$set": note}, upsert=True)
        same = {"_id": key, "status": document.get("status"), "lease": document.get("lease")}
        change = {"$set": dict(marks), "$unset": {"uid": "", "lease": ""}}
        if not self.runs.update_one(same, change).matched_count:
            self.removed.delete_one({"_id": uid})
            raise StoreError(f"run {key} has just changed; try again when its process has ended")

    # ------------------------------------------------------------------ the trash

    def discard(self, key: Any) -> None:
        """Move a run into the trash: its document says so, and all that is the run's stays where it is.

        Raises:
            StoreError: If the run is gone, or came to life in the meantime.
        """
        document = self._document(key)
        kept = {name: document[name] for name in ("uid", "lease", "status") if name in document}
        self._mark(document, {"status": DISCARDED, TRASH: {**kept, "at": datetime.now(UTC)}})

    def trash(self) -> list[dict[str, Any]]:
        """Return the documents of runs in the trash, the one discarded last first."""
        return list(self.runs.find(IN_TRASH, {TRASH: 1, "experiment.name": 1}, sort=[(f"{TRASH}.at", -1), ("_id", -1)]))

    def restore(self, key: Any) -> None:
        """Bring a run back out of the trash.

        Raises:
            StoreError: If it no longer exists.
        """
        document = self.runs.find_one({"_id": key, **IN_TRASH}, {TRASH: 1})
        if document is None:
            raise self._not_in_trash(key)
        kept = {name: value for name, value in document[TRASH].items() if name != "at"}
        change = {"$set": kept, "$unset": {TRASH: ""} | ({} if "status" in kept else {"status": ""})}
        if not self.runs.update_one({"_id": key, TRASH: document[TRASH]}, change).matched_count:
            raise self._not_in_trash(key)
        if isinstance(kept.get("uid"), str):
            self.removed.delete_one({"_id": kept["uid"]})

    def _not_in_trash(self, key: Any) -> StoreError:
        return StoreError(f"run {key} is no longer in the trash of {self.mongo.where}; another process took it")

    def empty_trash(self) -> list[str]:
        """Remove the runs in the trash; return their ids."""
        ids = []
        for document in self.trash():
            marks = {"status": REMOVING, "removing": {"uid": document[TRASH].get("uid")}}
            query = {"_id": document["_id"], **IN_TRASH}
            if self.runs.update_one(query, {"$set": marks, "$unset": {TRASH: ""}}).matched_count:
                self._finish(document["_id"])
                ids.append(str(document["_id"]))
        return ids

    def forget(self, uid: str) -> None:
        """Let the run `uid` come back: finish its removal, and take away the note of it."""
        for document in list(self.runs.find({"removing.uid": uid}, {"_id": 1})):
            self._finish(document["_id"])
        self.removed.delete_one({"_id": uid})

    def _finish(self, key: Any) -> None:
        document = self.runs.find_one({"_id": key, "removing": {"$exists": True}})
        if document is None:
            return  # another process was quicker
        marks = document["removing"]
        uid = marks.get("uid") if isinstance(marks, Mapping) else None
        self.metrics.delete_many({"run_id": key})
        self.chunks.delete_many({"run_id": key})
        for found in (self._owned_by(uid), self._stock_artifacts(document, key)):
            self._delete_files([file["_id"] for file in found])
        shared = set(_ids(document))
        for entry in self.media.find({"run_id": key}):
            shared |= set(_ids(entry))
        # Noted before the last that names them goes; `reclaim` looks whether others do.
        listed = sorted(shared)
        for start in range(0, len(listed), _NOTED):
            note = object_id("may go", str(key), str(uid), start)
            self.removed.replace_one({"_id": note}, {"may_go": listed[start : start + _NOTED]}, upsert=True)
        self.media.delete_many({"run_id": key})
        self.runs.delete_one({"_id": key, "removing": {"$exists": True}})

    def _owned_by(self, uid: Any) -> list[dict[str, Any]]:
        if not isinstance(uid, str) or not uid or uid in _SHARED_OWNERS:
            return []
        return list(self.files.find({"uid": uid}, {"_id": 1}))

    def _stock_artifacts(self, document: Mapping[str, Any], key: Any) -> list[dict[str, Any]]:
        """Return files that Sacred itself stored for the run, by the name that it gave them."""
        named = set(_ids(document.get("artifacts")))
        start = f"artifact://{self.runs.name}/{key}/"
        found = self.files.find({"_id": {"$in": sorted(named)}}, {"filename": 1})
        return [file for file in found if str(file.get("filename", "")).startswith(start)]

    # ------------------------------------------------------------------ contents

    def reclaim(self, removed: Removed, grace_s: float) -> None:
        """Finish removals, and delete contents that nothing names and nobody used for `grace_s` seconds."""
        for document in list(self.runs.find({"removing": {"$exists": True}}, {"_id": 1})):
            self._finish(document["_id"])
        for note in list(self.removed.find({"going": {"$exists": True}})):
            gone = [key for key in note["going"] if self.files.find_one({"_id": key}, {"_id": 1}) is None]
            self.pieces.delete_many({"files_id": {"$in": gone}})
            self.removed.delete_one({"_id": note["_id"]})
        notes = list(self.removed.find({"may_go": {"$exists": True}}))
        candidates = dict(self._candidates(notes))
        if candidates:
            named, removed.unreadable = self._named()
            if removed.unreadable:
                return
            oldest = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=grace_s)
            unused = {key: file for key, file in candidates.items() if key not in named}
            old = [key for key, file in unused.items() if _last_use(file) < oldest]
            removed.num_young += len(unused) - len(old)
            deleted = self._delete_files(old, oldest)
            removed.num_contents += len(deleted)
            removed.num_bytes += sum(int(unused[key].get("length") or 0) for key in deleted)
            young = unused.keys() - set(old)
        else:
            young = set()
        for note in notes:
            if not young & set(note["may_go"]):
                self.removed.delete_one({"_id": note["_id"]})

    def _candidates(self, notes: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield files that may be of no use: those that removed runs named, and those that observers made.

        Other files are none of ours: other programs may keep files in the same database.
        """
        fields = {"length": 1, "uploadDate": 1, "used": 1, "sha256": 1, "uid": 1}
        living = {
            document["uid"]
            for name in self._names()
            for document in self.database[name].find({"uid": {"$gt": ""}}, {"uid": 1})
        }
        living |= {document[TRASH].get("uid") for document in self.trash()}
        for file in self.files.find({"$or": [{"sha256": {"$exists": True}}, {"uid": {"$exists": True}}]}, fields):
            uid = file.get("uid")
            is_shared = uid in _SHARED_OWNERS or (
                uid is None and file["_id"] == object_id("sha256", str(file.get("sha256")))
            )
            if is_shared or (uid is not None and uid not in living):
                yield file["_id"], file
        may_go = sorted({key for note in notes for key in note["may_go"]})
        for start in range(0, len(may_go), 10_000):
            for file in self.files.find({"_id": {"$in": may_go[start : start + 10_000]}}, fields):
                if file.get("uid") is None or file["uid"] in _SHARED_OWNERS:
                    yield file["_id"], file

    def _names(self) -> list[str]:
        return [name for name in self.database.list_collection_names() if may_name_files(name)]

    def _named(self) -> tuple[set[bson.ObjectId], list[str]]:
        """Return all ids that documents name, of any collection, and the documents of which not all can be read."""
        named: set[bson.ObjectId] = set()
        unreadable = []
        for name in self._names():
            for document in self.database[name].find({}, dict.fromkeys(_OWN, 0)):
                named.update(_ids(document))
                for listed in _cut_off(document):
                    try:
                        named.update(_ids(parse_json(self.mongo.fs.get(listed).read())))
                    except Exception:  # whatever it is, the list may name anything
                        unreadable.append(str(document["_id"]))
        return named, unreadable

    def _delete_files(self, keys: Iterable[Any], oldest: datetime | None = None) -> list[Any]:
        """Delete files, of those that may be in use only what was not used since `oldest`; return which."""
        keys, deleted = list(keys), []
        unused = {} if oldest is None else {"used": {"$not": {"$gte": oldest}}, "uploadDate": {"$lt": oldest}}
        for start in range(0, len(keys), 1000):
            part = keys[start : start + 1000]
            # Pieces without a file would never be found again.
            note = self.removed.insert_one({"going": part}).inserted_id
            for key in part:
                if self.files.delete_one({"_id": key, **unused}).deleted_count:
                    self.pieces.delete_many({"files_id": key})
                    deleted.append(key)
            self.removed.delete_one({"_id": note})
        return deleted


def _last_use(file: Mapping[str, Any]) -> datetime:
    times = [file.get("used"), file.get("uploadDate")]
    return max((time for time in times if isinstance(time, datetime)), default=datetime.max)


def _ids(value: Any) -> Iterator[bson.ObjectId]:
    """Yield all ids in a document, also as texts."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, bson.ObjectId):
            yield value
        elif isinstance(value, str):
            if len(value) == 24 and bson.ObjectId.is_valid(value):
                yield bson.ObjectId(value)
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _cut_off(document: Mapping[str, Any]) -> Iterator[bson.ObjectId]:
    """Yield the files of lists that did not fit into a document."""
    experiment = document.get("experiment")
    for holder in (document, experiment if isinstance(experiment, Mapping) else {}):
        for name, value in holder.items():
            if name.endswith("_file") and isinstance(value, Mapping):
                yield from _ids(value)
