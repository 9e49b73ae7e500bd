"""Contents of files in a database, in GridFS: those of sources and resources once for all runs, by their SHA-256.

What a run made itself (artifacts, output, large entries) belongs to that run alone, under `uid`, because incense and
Omniboard delete the artifacts of a run together with the run.

The two collections are written here and not through `gridfs`, which makes indexes, and so fails for a user who may only
write; and every piece has an id of its own, so that an upload that was broken off goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import mimetypes
from collections.abc import Collection, Container
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import bson
from pymongo.errors import DuplicateKeyError, OperationFailure

from observers.mongo.documents import object_id
from observers.mongo.layout import Collections
from observers.record.regular_file import open_regular
from observers.record.storable import storable_text
from observers.record.stored_files import md5_in

__all__ = ["Contents", "incomplete_files"]

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 255 * 1024
_BATCH_FILES = 10_000
# Well within the hour for which `runs gc` keeps what was used.
_RENEWED_S = 1200.0


class Contents:
    """The contents that one process has stored in a database, or found stored there.

    Args:
        collections: Where to.
    """

    def __init__(self, collections: Collections) -> None:
        self._collections = collections
        self._ids: dict[str, bson.ObjectId | None] = {}
        self._stored: set[bson.ObjectId] = set()
        # Those that are to be sent whatever the database says that it has.
        self._incomplete: set[Any] = set()

    @property
    def stored(self) -> Collection[bson.ObjectId]:
        """Ids of all contents that were stored, or found, by this object."""
        return self._stored

    def forget(self, incomplete: Collection[Any]) -> None:
        """Take nothing to be stored any more, and send those that are `incomplete` again."""
        self._ids.clear()
        self._stored.clear()
        self._incomplete |= set(incomplete)

    def store(
        self, path: Path, name: str, *, owner: str | None = None, kept_as: str = "", **fields: Any
    ) -> bson.ObjectId | None:
        """Store the content of a file, unless it is there, and return its id; None if there is no file to be read.

        Args:
            path: The file; one that did not change since is not read again.
            name: Its name in GridFS; of a content shared by runs the first one counts.
            owner: The uid of the run that it belongs to; None shares it.
            kept_as: The name that says which MD5 a source or resource has. One that has another is damaged, and is not
                stored, as it would have a valid MD5 there.
            **fields: Further entries of the file's document.
        """
        try:
            stat = path.stat()
            key = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}"
            if key not in self._ids:
                with open_regular(path) as stream:
                    self._ids[key] = self._store(stream, name, owner, md5_in(kept_as), fields)
        except OSError:  # removed, a folder, or not ours to read
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
        """Store `content` of the run `owner` under an id made from it."""
        fields = {"filename": name, "contentType": "application/json", "uid": owner}
        self._put(io.BytesIO(content), file_id, fields)

    def holds(self, file_id: bson.ObjectId) -> bool:
        """Tell whether a content was stored, or found, by this object."""
        return file_id in self._stored

    def _put(self, stream: BinaryIO, file_id: bson.ObjectId, fields: dict[str, Any]) -> None:
        if file_id in self._stored:
            return
        if file_id in self._incomplete or not self._renew(file_id):
            length = number = 0
            while piece := stream.read(_CHUNK_BYTES):
                chunk = {"_id": object_id(str(file_id), number), "files_id": file_id, "n": number, "data": piece}
                with contextlib.suppress(DuplicateKeyError):
                    self._collections.file_chunks.insert_one(chunk)
                length += len(piece)
                number += 1
            document = {"_id": file_id, "length": length, "chunkSize": _CHUNK_BYTES}
            document["uploadDate"] = datetime.now(UTC)
            with contextlib.suppress(DuplicateKeyError):
                self._collections.files.insert_one({**document, **fields})
        self._incomplete.discard(file_id)
        self._stored.add(file_id)

    def _renew(self, file_id: bson.ObjectId) -> bool:
        """Tell whether a content is there; if so, note that it is in use: `runs gc` keeps what was used lately."""
        found = self._collections.files.find_one({"_id": file_id}, {"uploadDate": 1, "used": 1})
        if found is None:
            return False
        now = datetime.now(UTC).replace(tzinfo=None)
        if now - max(found["uploadDate"], found.get("used", datetime.min)) < timedelta(seconds=_RENEWED_S):
            return True
        try:
            return self._collections.files.update_one({"_id": file_id}, {"$set": {"used": now}}).matched_count > 0
        except OperationFailure as error:
            if error.code != 13:  # may insert, and not update
                raise
            return True

    def drop_others(self, owner: str, keep: Container[Any]) -> None:
        """Remove the files of the run `owner` that are not among `keep`, if the user may remove any."""
        try:
            for file in list(self._collections.files.find({"uid": owner}, {"_id": 1})):
                if file["_id"] not in keep:
                    self._collections.files.delete_one({"_id": file["_id"]})
                    self._collections.file_chunks.delete_many({"files_id": file["_id"]})
                    self._stored.discard(file["_id"])
        except OperationFailure as error:
            if error.code != 13:
                raise


def incomplete_files(collections: Collections, ids: Collection[Any]) -> set[Any]:
    """Return those of `ids` that are not in GridFS, or not with all pieces; the server counts these.

    Raises:
        pymongo.errors.PyMongoError: If the database cannot be reached or refuses.
    """
    listed, found = list(ids), set()
    for start in range(0, len(listed), _BATCH_FILES):
        batch = listed[start : start + _BATCH_FILES]
        counted = collections.file_chunks.aggregate(
            [{"$match": {"files_id": {"$in": batch}}}, {"$group": {"_id": "$files_id", "pieces": {"$sum": 1}}}]
        )
        pieces = {row["_id"]: row["pieces"] for row in counted}
        for file in collections.files.find({"_id": {"$in": batch}}, {"length": 1, "chunkSize": 1}):
            if pieces.get(file["_id"], 0) >= -(-file["length"] // file["chunkSize"]):
                found.add(file["_id"])
    return set(listed) - found
