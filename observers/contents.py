"""Contents of files in a database: each once, in GridFS, under an id made from its SHA-256."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any, BinaryIO

import bson
import gridfs
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError

__all__ = ["Contents", "object_id"]


def object_id(*parts: str | int) -> bson.ObjectId:
    """Return the ObjectId that stands for `parts`: the first 12 bytes of their SHA-256."""
    return bson.ObjectId(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:12])


class Contents:
    """The contents that one process has stored, or found stored, in `database`."""

    def __init__(self, database: Database) -> None:
        self._fs = gridfs.GridFS(database)
        self._stored: dict[str, Any] = {}

    def store(self, path: Path, name: str) -> bson.ObjectId | None:
        """Store the content of a file, unless it is there, and return its id; None if there is no such file.

        Args:
            path: The file; one that did not change since is not read again.
            name: Its name in GridFS, which counts for the first one of a content.
        """
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None
        key = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}"
        if key not in self._stored:
            with path.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
                stream.seek(0)
                md5 = hashlib.file_digest(stream, "md5").hexdigest()
                stream.seek(0)
                self._stored[key] = self._put(stream, sha256, filename=name, md5=md5)
        return self._stored[key]

    def _put(self, stream: BinaryIO, sha256: str, **fields: Any) -> bson.ObjectId:
        file_id = object_id("sha256", sha256)
        if not self._fs.exists(file_id):
            # What an upload that was broken off has left would stand in the way.
            self._fs.delete(file_id)
            with contextlib.suppress(gridfs.errors.FileExists, DuplicateKeyError):
                self._fs.put(stream, _id=file_id, sha256=sha256, **fields)
        return file_id
