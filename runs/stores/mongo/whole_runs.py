"""Whole runs of a database: delivering and removing them.

A run that is being delivered has the status COPYING until it is whole. To remove one, its document first gets the
status REMOVING and loses its uid, so that no reader takes it for a whole run. It is deleted last, so that its `_id`
stays taken while anything is stored under it. The next removal finishes a killed one. The collection `removed` notes
the uids of removed runs, which must not be delivered again, and contents that are about to be deleted.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bson
from pymongo.errors import OperationFailure

from sacristan.configs.map import abbreviated
from sacristan.observers.artifacts.aliases import check_removable
from sacristan.observers.errors import ArtifactError
from sacristan.observers.mongo.aliases import MongoAliases
from sacristan.observers.mongo.delivery import Delivery
from sacristan.observers.mongo.documents import Packer, content_id, object_id
from sacristan.observers.mongo.layout import may_name_files
from sacristan.observers.record import schema
from sacristan.observers.record.json_text import parse_json
from sacristan.runs.errors import StoreError
from sacristan.runs.query import mapping_of
from sacristan.runs.stores import COPYING, REMOVING, Removed, StagedRun
from sacristan.runs.stores.mongo.database import MongoDatabase

DISCARDED, TRASH = "DISCARDED", "trash"
IN_TRASH: dict[str, Any] = {TRASH: {"$exists": True}}
# Entries that name only files of their own run.
_OWN = ("config", "info", "summary", "provenance", "captured_out", "host", "meta", "lease")
_NOTED = 100_000
# Owners of files that belong to no single run: large entries of media and of artifacts.
_SHARED_OWNERS = ("media", "artifacts")


class Remover:
    """Removes runs from a database, at once or through its trash; pymongo's errors are raised unchanged."""

    def __init__(self, mongo: MongoDatabase) -> None:
        self.mongo = mongo
        # What decides about a run is confirmed; if the rest is lost, the next removal makes up for it.
        sent, self.runs, self.removed = mongo.collections.sent, mongo.confirmed.runs, mongo.confirmed.removed
        self.database = sent.database
        self.metrics, self.chunks, self.media = sent.metrics, sent.chunks, sent.media
        self.files, self.pieces = sent.files, sent.file_chunks

    def remove(self, key: Any) -> None:
        """Remove a run's document and everything that only the run uses; a second call finishes a killed removal."""
        document = self._document(key)
        if not document.get("removing"):
            self._mark(document, {"status": REMOVING, "removing": {"uid": document.get("uid")}})
        self._finish(key)

    def _document(self, key: Any) -> dict[str, Any]:
        document = self.runs.find_one({"_id": key}, {"uid": 1, "lease": 1, "status": 1, "removing": 1})
        if document is None:
            raise StoreError(f"run {key} is no longer in {self.mongo.where}")
        return document

    def _require_right(self) -> None:
        """Delete nothing, so that the server rejects users without the right to remove before anything is marked."""
        self.runs.delete_one({"_id": bson.ObjectId()})

    def _mark(self, document: Mapping[str, Any], marks: Mapping[str, Any]) -> None:
        """Hide a run from readers and from delivery."""
        self._require_right()
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
        """Move a run to the trash by marking its document, which keeps uid, lease and status; its data stay."""
        document = self._document(key)
        kept = {name: document[name] for name in ("uid", "lease", "status") if name in document}
        self._mark(document, {"status": DISCARDED, TRASH: {**kept, "at": datetime.now(UTC)}})

    def trash(self) -> list[dict[str, Any]]:
        """Return the documents of the runs in the trash, last discarded first."""
        shown = {TRASH: 1, "experiment.name": 1, "changes": 1}
        return list(self.runs.find(IN_TRASH, shown, sort=[(f"{TRASH}.at", -1), ("_id", -1)]))

    def restore(self, key: Any) -> None:
        """Restore a run from the trash; raise a StoreError if it is no longer there."""
        self._require_right()
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
        self._require_right()
        ids = []
        for document in self.trash():
            marks = {"status": REMOVING, "removing": {"uid": document[TRASH].get("uid")}}
            query = {"_id": document["_id"], **IN_TRASH}
            if self.runs.update_one(query, {"$set": marks, "$unset": {TRASH: ""}}).matched_count:
                self._finish(document["_id"])
                ids.append(str(document["_id"]))
        return ids

    def forget(self, uid: str) -> None:
        """Finish the removal of a run and delete the note of it, so that the run can be delivered again."""
        for document in list(self.runs.find({"removing.uid": uid}, {"_id": 1})):
            self._finish(document["_id"])
        # Who may only add runs may add those that nobody removed.
        if self.removed.find_one({"_id": uid}, {"_id": 1}) is not None:
            self.removed.delete_one({"_id": uid})

    def remove_version(self, name: str, version: int) -> None:
        """Remove a version of an artifact; raise a StoreError if there is none, or an alias names it."""
        self._require_right()
        artifacts = self.mongo.confirmed.artifacts
        version_document = artifacts.find_one({"name": name, "version": version}, {"_id": 1})
        if version_document is None:
            raise StoreError(f"{name}:v{version}: {self.mongo.where} has no such version")
        self._check_version(name, version)
        artifacts.update_one(version_document, {"$set": {"removing": datetime.now(UTC)}})
        self._finish_version(version_document["_id"], name, version)

    def _finish_version(self, key: Any, name: str, version: int) -> None:
        """Delete a version that is marked, unless an alias was moved to it before the mark was seen."""
        artifacts = self.mongo.confirmed.artifacts
        try:
            self._check_version(name, version)
        except StoreError:
            artifacts.update_one({"_id": key}, {"$unset": {"removing": ""}})
            raise
        artifacts.delete_one({"_id": key, "removing": {"$exists": True}})

    def _check_version(self, name: str, version: int) -> None:
        confirmed = self.mongo.confirmed
        newest = confirmed.artifacts.find_one({"name": name}, {"version": 1}, sort=[("version", -1)]) or {}
        try:
            present = MongoAliases(confirmed).present(name)
            check_removable(name, version, newest.get("version", 0), present, self.mongo.where)
        except ArtifactError as error:
            raise StoreError(str(error)) from error

    def _finish(self, key: Any) -> None:
        document = self.runs.find_one({"_id": key, "removing": {"$exists": True}})
        if document is None:
            return  # another process was faster
        uid = mapping_of(document["removing"]).get("uid")
        self.metrics.delete_many({"run_id": key})
        self.chunks.delete_many({"run_id": key})
        for files in (self._owned_by(uid), self._stock_artifacts(document, key)):
            self._delete_files([file["_id"] for file in files])
        shared = set(_ids(document))
        for entry in self.media.find({"run_id": key}):
            shared |= set(_ids(entry))
        # Noted before the last document that names them is deleted; `reclaim` checks whether others name them.
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
        """Return the files that stock Sacred stored for the run, which it named after it."""
        named = set(_ids(document.get("artifacts")))
        start = f"artifact://{self.runs.name}/{key}/"
        files = self.files.find({"_id": {"$in": sorted(named)}}, {"filename": 1})
        return [file for file in files if str(file.get("filename", "")).startswith(start)]

    # ------------------------------------------------------------------ contents

    def reclaim(self, removed: Removed, grace_s: float) -> None:
        """Finish killed removals, and delete contents that nothing names or used for `grace_s` seconds."""
        self._require_right()
        for document in list(self.runs.find({"removing": {"$exists": True}}, {"_id": 1})):
            self._finish(document["_id"])
        for version in list(self.mongo.confirmed.artifacts.find({"removing": {"$exists": True}}, {"files": 0})):
            with contextlib.suppress(StoreError):
                self._finish_version(version["_id"], version["name"], version["version"])
        for note in list(self.removed.find({"going": {"$exists": True}})):
            gone = [key for key in note["going"] if self.files.find_one({"_id": key}, {"_id": 1}) is None]
            self.pieces.delete_many({"files_id": {"$in": gone}})
            self.removed.delete_one({"_id": note["_id"]})
        notes = list(self.removed.find({"may_go": {"$exists": True}}))
        young = self._reclaim(dict(self._candidates(notes)), removed, grace_s)
        for note in () if removed.unreadable else notes:
            if not young & set(note["may_go"]):
                self.removed.delete_one({"_id": note["_id"]})
        self._reclaim_pieces(removed, grace_s)

    def _reclaim_pieces(self, removed: Removed, grace_s: float) -> None:
        """Delete the pieces of uploads that were cut short, if their number has not changed for `grace_s` seconds.

        Pieces have no time, so the first call notes their number.
        """
        if not self._has_index_of_pieces():
            return  # it would read all files
        listed = {file["_id"] for file in self.files.find({}, {"_id": 1})}
        ids = [row["_id"] for row in self.pieces.aggregate([{"$group": {"_id": "$files_id"}}])]
        cut_short, now = [key for key in ids if key not in listed and self._is_own_piece(key)], datetime.now(UTC)
        self.removed.delete_many({"pieces_of": {"$exists": True, "$nin": cut_short}})
        for key in cut_short:
            size = {"$group": {"_id": None, "pieces": {"$sum": 1}, "bytes": {"$sum": {"$binarySize": "$data"}}}}
            [found] = [*self.pieces.aggregate([{"$match": {"files_id": key}}, size])] or [{"pieces": 0, "bytes": 0}]
            note = self.removed.find_one({"pieces_of": key, "pieces": found["pieces"]})
            if note is None:
                change = {"$set": {"pieces": found["pieces"], "at": now}}
                self.removed.update_one({"pieces_of": key}, change, upsert=True)
                removed.num_young += 1
            elif note["at"].replace(tzinfo=UTC) <= now - timedelta(seconds=grace_s):
                self.pieces.delete_many({"files_id": key})
                self.removed.delete_one({"_id": note["_id"]})
                removed.num_contents += 1
                removed.num_bytes += found["bytes"]
            else:
                removed.num_young += 1

    def _has_index_of_pieces(self) -> bool:
        """Tell whether pieces are found by file; False for a user who may not look."""
        try:
            indexes = self.pieces.index_information()
        except OperationFailure as error:
            if error.code != 13:
                raise
            return False
        return any(index["key"][0][0] == "files_id" for index in indexes.values())

    def _is_own_piece(self, key: Any) -> bool:
        """Tell whether the pieces of a file are of an observer of the lab; others may belong to other programs."""
        piece = self.pieces.find_one({"files_id": key}, {"n": 1})
        return piece is not None and piece["_id"] == object_id(str(key), piece["n"])

    def _reclaim(self, candidates: dict[Any, dict[str, Any]], removed: Removed, grace_s: float) -> set[Any]:
        """Delete the candidates that no document names; return the ids of those that are too young to delete."""
        if not candidates:
            return set()
        named, removed.unreadable = self._named()
        if removed.unreadable:
            return set()
        oldest = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=grace_s)
        unused = {key: file for key, file in candidates.items() if key not in named}
        old = [key for key, file in unused.items() if _last_use(file) < oldest]
        removed.num_young += len(unused) - len(old)
        deleted = self._delete_files(old, oldest)
        removed.num_contents += len(deleted)
        removed.num_bytes += sum(int(unused[key].get("length") or 0) for key in deleted)
        return unused.keys() - set(old)

    def _candidates(self, notes: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield files that may be unused: files that removed runs named, and files that observers made.

        Other files may belong to other programs.
        """
        fields = {"length": 1, "uploadDate": 1, "used": 1, "sha256": 1, "uid": 1}
        uids = self._uids()
        for file in self.files.find({"$or": [{"sha256": {"$exists": True}}, {"uid": {"$exists": True}}]}, fields):
            if _is_shared(file) or (file.get("uid") is not None and file["uid"] not in uids):
                yield file["_id"], file
        yield from self._noted_files(notes, fields)

    def _noted_files(
        self, notes: Iterable[Mapping[str, Any]], fields: Mapping[str, int]
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        may_go = sorted({key for note in notes for key in note["may_go"]})
        for start in range(0, len(may_go), 10_000):
            for file in self.files.find({"_id": {"$in": may_go[start : start + 10_000]}}, fields):
                if file.get("uid") is None or file["uid"] in _SHARED_OWNERS:
                    yield file["_id"], file

    def _uids(self) -> set[Any]:
        """Return the uids of all runs, including those in the trash."""
        uids = {
            document["uid"]
            for name in self._names()
            for document in self.database[name].find({"uid": {"$gt": ""}}, {"uid": 1})
        }
        return uids | {document[TRASH].get("uid") for document in self.trash()}

    def _names(self) -> list[str]:
        return [name for name in self.database.list_collection_names() if may_name_files(name)]

    def _named(self) -> tuple[set[bson.ObjectId], list[str]]:
        """Return all ids that documents of any collection name, and the documents that cannot be read completely."""
        named: set[bson.ObjectId] = set()
        unreadable = []
        for name in self._names():
            for document in self.database[name].find({}, dict.fromkeys(_OWN, 0)):
                named.update(_ids(document))
                try:
                    for listed in _cut_off(document):
                        named.update(_ids(parse_json(self.mongo.fs.get(listed).read())))
                    if "manifest_id" in document and document["num_files"] > len(document["files"]):
                        manifest = parse_json(self.mongo.fs.get(document["manifest_id"]).read())
                        named.update(content_id(file["sha256"]) for file in manifest["files"])
                except Exception:  # an unreadable list may name anything
                    unreadable.append(str(document["_id"]))
        return named, unreadable

    def _delete_files(self, keys: Iterable[Any], oldest: datetime | None = None) -> list[Any]:
        """Delete files, with `oldest` only those not used since then; return the ids of the deleted ones."""
        keys, deleted = list(keys), []
        unused = {} if oldest is None else {"used": {"$not": {"$gte": oldest}}, "uploadDate": {"$lt": oldest}}
        for start in range(0, len(keys), 1000):
            part = keys[start : start + 1000]
            # Without the note nothing would find the pieces of a deleted file.
            note = self.removed.insert_one({"going": part}).inserted_id
            for key in part:
                if self.files.delete_one({"_id": key, **unused}).deleted_count:
                    self.pieces.delete_many({"files_id": key})
                    deleted.append(key)
            self.removed.delete_one({"_id": note})
        return deleted


def _is_shared(file: Mapping[str, Any]) -> bool:
    """Tell whether a file belongs to no single run: a large entry, or a content."""
    if file.get("uid") is None:
        sha256 = str(file.get("sha256"))
        return file["_id"] in (object_id("sha256", sha256), content_id(sha256))
    return file["uid"] in _SHARED_OWNERS


def _last_use(file: Mapping[str, Any]) -> datetime:
    times = [file.get("used"), file.get("uploadDate")]
    return max((time for time in times if isinstance(time, datetime)), default=datetime.max)


def _ids(value: Any) -> Iterator[bson.ObjectId]:
    """Yield all ids of files in a document, including those written as text."""
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
    """Yield the ids of the files that hold lists which did not fit into a document."""
    for holder in (document, mapping_of(document.get("experiment"))):
        for name, value in holder.items():
            if name.endswith("_file") and isinstance(value, Mapping):
                yield from _ids(value)


_ATTEMPTS = 10


def deliver_whole(staged: StagedRun, mongo: MongoDatabase) -> Any:
    """Deliver a run and return its `_id`; a second call finishes an interrupted one."""
    path = staged.folder / schema.RUN
    record = parse_json(path.read_bytes())
    with mongo.errors():
        Remover(mongo).forget(staged.uid)
        path.write_text(json.dumps({**record, "status": COPYING}))
        where = mongo.collections
        delivery = Delivery(
            staged.folder,
            staged.folder.parent,
            mongo.database,
            where.prefix,
            collection=where.collection,
            with_checkpoints=True,
        )
        _deliver(delivery, mongo)
        notes = schema.read_json_if_whole(staged.folder / schema.NOTES)
        if notes:
            mongo.confirmed.runs.update_one({"_id": delivery.run_id, "uid": staged.uid}, {"$set": notes})
        # The true status comes last: now the run is whole.
        path.write_text(json.dumps(record))
        _deliver(delivery, mongo)
    return delivery.run_id


def _deliver(delivery: Delivery, mongo: MongoDatabase) -> None:
    for _ in range(_ATTEMPTS):
        delivery.advance(last=True)
        if delivery.is_complete:
            return
    raise StoreError(
        f"the run is in {mongo.where} as run {delivery.run_id} and not complete: its record is damaged, or others copy "
        "it at the same time"
    )


def unnamed_files(folder: Path) -> tuple[str, ...]:
    """Return a sentence on the files of a run that a database has no place for; nothing if there are none."""
    record = parse_json((folder / schema.RUN).read_bytes())
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    earlier = {entry["file"] for entry in record.get("earlier_artifacts", ())}
    known = {*schema.OWN_FILES, *record["artifacts"], *earlier, *(name for name, _ in schema.checkpoint_files(folder))}
    known |= {path.relative_to(folder).as_posix() for path in schema.rank_files(folder).values()}
    rest = sorted(name for name in names - known if not name.startswith(f"{schema.MEDIA_FOLDER}/"))
    if not rest:
        return ()
    shown = abbreviated(map(repr, rest), 3)
    return (f"{len(rest)} files of its folder that the record does not name: {shown}",)


def changed_entries(folder: Path) -> tuple[str, ...]:
    """Return a sentence for each entry of a run that a database can only hold in a changed form."""
    record = parse_json((folder / schema.RUN).read_bytes())
    details = record.get("artifact_details", {})
    entries = {f"metadata of the artifact {name!r}": one.get("metadata") for name, one in details.items()}
    entries |= {f"media entry {n}": entry for n, entry in enumerate(schema.read_json_lines(folder / schema.MEDIA), 1)}
    sentences = []
    for name, entry in entries.items():
        packer = Packer(str(record["uid"]))
        packer.entry(entry)
        if not packer.is_exact:
            sentences.append(f"{name}: its keys with . or $, integers over 34 digits or lone surrogates are changed")
    return tuple(sentences)
