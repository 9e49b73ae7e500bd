"""Contents of files in a database, in GridFS, by their SHA-256; and artifacts, which are made of contents.

Sources, resources and the contents of artifacts are kept once for all runs. Files that a run made itself (those of
`add_artifact`, output, large entries) belong to that run alone, under its `uid`, because incense and Omniboard delete
the artifacts of a run together with the run.

This module writes the two collections itself instead of using `gridfs`, which creates indexes and so fails for users
who may only write. Every piece has an id made from its content, so an interrupted upload continues where it stopped.
Resending a file or an artifact changes nothing.

`artifacts` has one document for each content of an artifact, under an id made from name and digest:

    name, version, type, digest, bytes, num_files, metadata, created
    files        [{path, sha256, bytes, file_id}], the first ones, up to about 2 MB
    manifest_id  the whole manifest, as a file
    made_by, used_by  uids of runs

The version is the folder's number if the database has it free, otherwise the next free one. Contents are sent before
the document, so a document never names a missing file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import logging
import mimetypes
import time
from collections.abc import Collection, Container, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import bson
from pymongo.errors import DuplicateKeyError, OperationFailure

from sacristan.observers.artifacts import ArtifactVersion
from sacristan.observers.artifacts.store import ArtifactStore
from sacristan.observers.errors import ArtifactDamagedError, ArtifactError
from sacristan.observers.mongo.aliases import MongoAliases
from sacristan.observers.mongo.documents import Packer, content_id, files_in, object_id
from sacristan.observers.mongo.layout import Collections, make_artifact_indexes
from sacristan.observers.record.copies import md5_in
from sacristan.observers.record.files import open_regular
from sacristan.observers.record.json_text import storable_text

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 255 * 1024
_BATCH_FILES = 10_000
# Well within the hour for which `sacristan gc` keeps what was used.
_RENEWED_S = 1200.0
MAX_FILES_BYTES = 2 * 2**20
ALIASED = "artifacts_aliased"
RELATIONS = {"artifacts_logged": "made_by", "artifacts_used": "used_by"}
# The owner of large entries in metadata, which belong to no run.
_OWNER = "artifacts"

_Entry = Mapping[str, Any]


class StoredContents:
    """The contents that one process has stored in a database, or found there."""

    def __init__(self, collections: Collections) -> None:
        self._collections = collections
        self._ids: dict[str, bson.ObjectId | None] = {}
        self.stored: set[bson.ObjectId] = set()
        # Contents to send even if the database lists them.
        self._incomplete: set[Any] = set()

    def forget(self, incomplete: Collection[Any]) -> None:
        """Assume that nothing is stored; send `incomplete` contents again even if the database lists them."""
        self._ids.clear()
        self.stored.clear()
        self._incomplete |= set(incomplete)

    def store(
        self, path: Path, name: str, *, owner: str | None = None, kept_as: str = "", **fields: Any
    ) -> bson.ObjectId | None:
        """Store the content of a file unless it is there; return its id, or None if it cannot be read or is damaged.

        A shared content (no `owner`) keeps its first `name`. `kept_as`, of a kept source or resource, contains its MD5.
        """
        try:
            stat = path.stat()
            key = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}"
            if key not in self._ids:
                with open_regular(path) as stream:
                    self._ids[key] = self._store(stream, name, owner, md5_in(kept_as), fields)
        except OSError:  # removed, a folder, or not readable
            return None
        return self._ids[key]

    def _store(
        self, stream: io.BufferedReader, name: str, owner: str | None, expected: str | None, fields: dict[str, Any]
    ) -> bson.ObjectId | None:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0)
        md5 = hashlib.file_digest(stream, "md5").hexdigest()
        stream.seek(0)
        if expected is not None and md5 != expected:
            _log.error("%r is not delivered to MongoDB: its MD5 is %s, recorded was %s", name, md5, expected)
            return None
        file_id = object_id("sha256", sha256) if owner is None else object_id("file", owner, name, sha256)
        fields = {"filename": storable_text(name), "md5": md5, "sha256": sha256, **fields}
        fields.setdefault("contentType", mimetypes.guess_type(name)[0])
        self._put(stream, file_id, fields if owner is None else {**fields, "uid": owner})
        return file_id

    def put(self, file_id: bson.ObjectId, content: bytes, name: str, owner: str) -> None:
        fields = {"filename": name, "contentType": "application/json", "uid": owner}
        self._put(io.BytesIO(content), file_id, fields)

    def holds(self, file_id: bson.ObjectId) -> bool:
        """Tell whether this object has stored or seen a content; one removed since counts until `forget`."""
        return file_id in self.stored

    def _put(self, stream: BinaryIO, file_id: bson.ObjectId, fields: dict[str, Any]) -> None:
        if file_id in self.stored:
            return
        if file_id in self._incomplete or not self._renew(file_id):
            for _ in send_file(self._collections, stream, file_id, fields):
                pass
        self._incomplete.discard(file_id)
        self.stored.add(file_id)

    def _renew(self, file_id: bson.ObjectId) -> bool:
        """Tell whether a content is there, and note that it is in use: `sacristan gc` keeps what was used lately."""
        file = self._collections.files.find_one({"_id": file_id}, {"uploadDate": 1, "used": 1})
        if file is None:
            return False
        now = datetime.now(UTC).replace(tzinfo=None)
        if now - max(file["uploadDate"], file.get("used", datetime.min)) < timedelta(seconds=_RENEWED_S):
            return True
        try:
            return self._collections.files.update_one({"_id": file_id}, {"$set": {"used": now}}).matched_count > 0
        except OperationFailure as error:
            if error.code != 13:  # may insert, but not update
                raise
            return True

    def drop_others(self, owner: str, keep: Container[Any]) -> None:
        """Remove the files of a run that are no longer in use, if the user may remove any."""
        try:
            for file in list(self._collections.files.find({"uid": owner}, {"_id": 1})):
                if file["_id"] not in keep:
                    self._collections.files.delete_one({"_id": file["_id"]})
                    self._collections.file_chunks.delete_many({"files_id": file["_id"]})
                    self.stored.discard(file["_id"])
        except OperationFailure as error:
            if error.code != 13:
                raise


class Upload:
    """Puts contents into GridFS, in pieces that may be resent; `incomplete` are ids of files without all pieces."""

    def __init__(self, collections: Collections) -> None:
        self._collections = collections
        self.incomplete: set[Any] = set()

    def send(self, stream: BinaryIO, sha256: str, filename: str) -> Iterator[None]:
        """Send a content unless it is there, yielding after each piece; reject one with another SHA-256."""
        file_id = content_id(sha256)
        is_listed = self._collections.files.find_one({"_id": file_id}, {"_id": 1}) is not None
        if is_listed and file_id not in self.incomplete:
            _note_use(self._collections, [file_id])
            return
        digest, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        while piece := stream.read(_CHUNK_BYTES):
            digest.update(piece)
            md5.update(piece)
            yield
        if digest.hexdigest() != sha256:
            raise ArtifactDamagedError(f"the content of {filename} is not what was logged")
        stream.seek(0)
        fields = {"filename": filename, "md5": md5.hexdigest(), "sha256": sha256}
        yield from send_file(self._collections, stream, file_id, fields)
        self.incomplete.discard(file_id)


def send_file(collections: Collections, stream: BinaryIO, file_id: Any, fields: dict[str, Any]) -> Iterator[None]:
    """Send a file to GridFS, and yield after each piece; pieces that are there are kept."""
    length = number = 0
    sent: set[int] = set()
    while piece := stream.read(_CHUNK_BYTES):
        if number == 0 and len(piece) == _CHUNK_BYTES:  # an interrupted upload of a large file may have left pieces
            sent = {chunk["n"] for chunk in collections.file_chunks.find({"files_id": file_id}, {"n": 1})}
        if number not in sent:
            chunk = {"_id": object_id(str(file_id), number), "files_id": file_id, "n": number, "data": piece}
            with contextlib.suppress(DuplicateKeyError):
                collections.file_chunks.insert_one(chunk)
        length += len(piece)
        number += 1
        yield
    document = {"_id": file_id, "length": length, "chunkSize": _CHUNK_BYTES, "uploadDate": datetime.now(UTC)}
    with contextlib.suppress(DuplicateKeyError):
        collections.files.insert_one({**document, **fields})


def incomplete_files(collections: Collections, ids: Collection[Any]) -> set[Any]:
    """Ask the server which files are missing from GridFS, or lack pieces."""
    listed, complete = list(ids), set()
    for start in range(0, len(listed), _BATCH_FILES):
        batch = listed[start : start + _BATCH_FILES]
        counted = collections.file_chunks.aggregate(
            [{"$match": {"files_id": {"$in": batch}}}, {"$group": {"_id": "$files_id", "pieces": {"$sum": 1}}}]
        )
        pieces = {row["_id"]: row["pieces"] for row in counted}
        for file in collections.files.find({"_id": {"$in": batch}}, {"length": 1, "chunkSize": 1}):
            if pieces.get(file["_id"], 0) >= -(-file["length"] // file["chunkSize"]):
                complete.add(file["_id"])
    return set(listed) - complete


def _note_use(collections: Collections, ids: Collection[Any]) -> None:
    """Note that files are in use, if the user may: `sacristan gc` keeps what was used lately."""
    listed, now = list(ids), datetime.now(UTC).replace(tzinfo=None)
    try:
        for start in range(0, len(listed), _BATCH_FILES):
            wanted = {"_id": {"$in": listed[start : start + _BATCH_FILES]}}
            collections.files.update_many(wanted, {"$set": {"used": now}})
    except OperationFailure as error:
        if error.code != 13:  # may insert, but not update
            raise


@dataclasses.dataclass
class Shipment:
    """A run and its database; stored paths are relative to `base`, and `run_id` is None before there is a document."""

    folder: Path
    base: Path
    collections: Collections
    contents: StoredContents
    uid: str
    run_id: Any = None

    def store(self, path: Path, name: str, **fields: Any) -> Any:
        """Store the content of a file that belongs to this run alone; return its id, or None if it cannot be read."""
        return self.contents.store(path, name, owner=self.uid, **fields)


def artifact_id(name: str, digest: str) -> Any:
    """Return the `_id` of the document of one content of an artifact."""
    return object_id("artifact", name, digest)


class ArtifactDelivery:
    """Delivers the artifacts of one run; one that cannot be read is reported once and left out."""

    def __init__(self, base: Path, collections: Collections) -> None:
        self._store = ArtifactStore(base)
        self._collections = collections
        self._upload = Upload(collections)
        self._contents = StoredContents(collections)
        self._numbers: dict[tuple, int] = {}
        self._failed: set[tuple] = set()
        self._aliases = MongoAliases(collections)
        self._num_aliased = 0
        self._work: tuple[tuple, Iterator[None]] | None = None

    def restart(self, incomplete: Collection[Any]) -> None:
        """Start again, and resend incomplete files."""
        self._numbers.clear()
        self._num_aliased = 0
        self._work = None
        self._upload.incomplete |= set(incomplete)
        self._contents.forget(incomplete)

    def advance(self, run: Mapping[str, Any], seconds: float | None = None) -> bool:
        """Deliver artifacts for about `seconds`; return whether all are delivered. After a PyMongoError, call again."""
        deadline = None if seconds is None else time.monotonic() + seconds
        for relation, entry in _entries(run):
            key = _key(relation, entry)
            if key in self._numbers or key in self._failed:
                continue
            if self._work is None or self._work[0] != key:
                self._work = key, self._deliver(relation, entry, run["uid"])
            try:
                for _ in self._work[1]:
                    if deadline is not None and time.monotonic() >= deadline:
                        return False
            except (ArtifactError, OSError) as error:
                self._failed.add(key)
                _log.error("artifact %s:v%s cannot be delivered: %s", entry["name"], entry["version"], error)
            except BaseException:
                self._work = None
                raise
        self._move_aliases(run)
        return True

    def _move_aliases(self, run: Mapping[str, Any]) -> None:
        """Move the aliases that a run moved, in that order."""
        for entry in run.get(ALIASED, ())[self._num_aliased :]:
            wanted = {"_id": artifact_id(entry["name"], entry["digest"])}
            version = self._collections.artifacts.find_one(wanted, {"version": 1})
            if version is not None:  # it is reported above why it is not there
                self._aliases.deliver(entry, version["version"], run["uid"])
            self._num_aliased += 1

    def is_complete(self, run: Mapping[str, Any]) -> bool:
        """Tell whether all artifacts that a run's record names are delivered."""
        are_there = all(_key(relation, entry) in self._numbers for relation, entry in _entries(run))
        return are_there and self._num_aliased == len(run.get(ALIASED, ()))

    def delivered(self, run: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Return the delivered artifacts by relation, each with its version in the database, for the run's document."""
        entries: dict[str, list[dict[str, Any]]] = {relation: [] for relation in RELATIONS if relation in run}
        for relation, entry in _entries(run):
            number = self._numbers.get(_key(relation, entry))
            if number is not None:
                entries[relation].append({**entry, "version": number})
        return entries

    def _deliver(self, relation: str, entry: _Entry, uid: str) -> Iterator[None]:
        """Deliver one artifact, and yield after each piece."""
        wanted = {"_id": artifact_id(entry["name"], entry["digest"])}
        change = {"$addToSet": {RELATIONS[relation]: uid}}
        number = self._change(wanted, change)
        if number is None or self._upload.incomplete:
            make_artifact_indexes(self._collections)
            version = self._store.resolve(f"{entry['name']}@{entry['digest']}")
            files = {content_id(file.sha256): file for file in version.files}
            waiting = set(files)
            while waiting:  # again what `sacristan gc` has deleted meanwhile, as no document names it yet
                for file_id in waiting:
                    with version.stored(files[file_id]) as stream:
                        yield from self._upload.send(stream, files[file_id].sha256, files[file_id].path)
                _note_use(self._collections, files)
                waiting = incomplete_files(self._collections, files)
                self._upload.incomplete |= waiting
            manifest = version.manifest()
            manifest_sha256 = hashlib.sha256(manifest).hexdigest()
            yield from self._upload.send(io.BytesIO(manifest), manifest_sha256, f"{version}.json")
            document = {**wanted, **_document(version), "manifest_id": content_id(manifest_sha256)}
            document["metadata"] = self._metadata(version)
            made_by = {uid} if relation == "artifacts_logged" else {version.made_by} - {None}
            document["made_by"] = sorted(made_by)
            document["used_by"] = [uid] if relation == "artifacts_used" else []
            number = self._insert(document, change)
        self._numbers[_key(relation, entry)] = number

    def _metadata(self, version: ArtifactVersion) -> Any:
        """Return metadata within MongoDB's limits; larger parts are stored as files."""
        packer = Packer(_OWNER)
        packed = packer.entry(version.metadata)
        for file_id in files_in(packed):
            self._contents.put(file_id, packer.files[file_id], "metadata.json", _OWNER)
        return packed

    def _change(self, wanted: dict[str, Any], change: dict[str, Any]) -> int | None:
        """Update a document, and return its version; None if there is no document."""
        document = self._collections.artifacts.find_one_and_update(wanted, change, {"version": 1})
        return document["version"] if document else None

    def _insert(self, document: dict[str, Any], change: dict[str, Any]) -> int:
        """Insert a document under its version, or under the next free one, and return that."""
        while True:
            try:
                self._collections.artifacts.insert_one(document)
            except DuplicateKeyError:
                number = self._change({"_id": document["_id"]}, change)
                if number is not None:
                    return number
                newest = self._collections.artifacts.find_one(
                    {"name": document["name"]}, {"version": 1}, sort=[("version", -1)]
                )
                document["version"] = newest["version"] + 1 if newest else 1
            else:
                return document["version"]


def artifact_keys(run: Mapping[str, Any]) -> dict[tuple[str, Any], str]:
    """Return a label for each artifact that a run logged or used, by relation and `_id` of the artifact's document."""
    return {
        (RELATIONS[relation], artifact_id(entry["name"], entry["digest"])): f"artifact {entry['name']!r}"
        for relation, entry in _entries(run)
    }


def _entries(run: Mapping[str, Any]) -> Iterator[tuple[str, _Entry]]:
    for relation in RELATIONS:
        for entry in run.get(relation, ()):
            yield relation, entry


def _key(relation: str, entry: _Entry) -> tuple:
    return relation, entry["name"], entry["digest"]


def _document(version: ArtifactVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "version": version.version,
        "type": version.type,
        "digest": version.digest,
        "bytes": version.bytes,
        "num_files": len(version.files),
        "files": _files(version),
        "created": version.created.replace(tzinfo=None),
    }


def _files(version: ArtifactVersion) -> list[dict[str, Any]]:
    listed, room = [], MAX_FILES_BYTES
    for file in version.files:
        room -= len(file.path.encode()) + 160
        if room < 0:
            break
        listed.append({**dataclasses.asdict(file), "file_id": content_id(file.sha256)})
    return listed
