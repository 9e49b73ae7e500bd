"""Contents of files in a database, in GridFS: sources and resources once for all runs, by their SHA-256.

Files that a run made itself (artifacts, output, large entries) belong to that run alone, under its `uid`, because
incense and Omniboard delete the artifacts of a run together with the run.

This module writes the two collections itself instead of using `gridfs`, which creates indexes and so fails for users
who may only write. Every piece has an id made from its content, so an interrupted upload continues where it stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import logging
import mimetypes
from collections.abc import Collection, Container, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import bson
from pymongo.errors import DuplicateKeyError, OperationFailure

from sacristan.observers.errors import ArtifactDamagedError
from sacristan.observers.mongo.documents import object_id
from sacristan.observers.mongo.layout import Collections
from sacristan.observers.record.files import open_regular
from sacristan.observers.record.json_text import storable_text
from sacristan.observers.record.stored_files import md5_in

__all__ = ["Shipment", "StoredContents", "Upload", "content_id", "incomplete_files"]

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 255 * 1024
_BATCH_FILES = 10_000
# Well within the hour for which `sacristan gc` keeps what was used.
_RENEWED_S = 1200.0


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

        An unchanged file is not read again, and a shared content keeps its first `name`. With `owner` None, runs share
        it. `kept_as` names a kept source or resource, and contains its MD5. A damaged file, with another MD5, is not
        stored, because it would have a valid MD5 there.
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
        """Store a content of a run."""
        fields = {"filename": name, "contentType": "application/json", "uid": owner}
        self._put(io.BytesIO(content), file_id, fields)

    def holds(self, file_id: bson.ObjectId) -> bool:
        """Tell whether this object has stored a content, or found it in the database.

        The database is not asked, so a file that was removed since still counts; see `forget`.
        """
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
    """Puts the contents of artifacts into GridFS, in pieces that may be sent any number of times.

    `incomplete` are ids of contents that the database lists without all of their pieces.
    """

    def __init__(self, collections: Collections) -> None:
        self._collections = collections
        self.incomplete: set[Any] = set()

    def send(self, stream: BinaryIO, sha256: str, filename: str) -> Iterator[None]:
        """Send a content unless it is there, and yield after each piece.

        Raises ArtifactDamagedError if the content has another SHA-256; then nothing is sent.
        """
        file_id = content_id(sha256)
        is_listed = self._collections.files.find_one({"_id": file_id}, {"_id": 1}) is not None
        if is_listed and file_id not in self.incomplete:
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


def content_id(sha256: str) -> Any:
    """Return the id in GridFS of a content of artifacts.

    Only artifacts share it: incense and Omniboard delete the files that Sacred's artifacts of a run refer to.
    """
    return object_id("artifact content", sha256)


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


@dataclasses.dataclass
class Shipment:
    """A run, and the database that it is delivered to.

    Its folder may be moved. Paths of stored sources and resources are relative to `base`. `run_id` is None before the
    run's document is found or inserted.
    """

    folder: Path
    base: Path
    collections: Collections
    contents: StoredContents
    uid: str
    run_id: Any = None

    def store(self, path: Path, name: str, **fields: Any) -> Any:
        """Store the content of a file that belongs to this run alone; return its id, or None if it cannot be read."""
        return self.contents.store(path, name, owner=self.uid, **fields)
