"""Versions of artifacts in a MongoDB database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, BinaryIO

import gridfs

from observers.mongo.documents import restore
from runs.errors import StoreError
from runs.stores.artifact_versions import StoredArtifact
from runs.stores.content import Content
from runs.stores.mongo.bson_values import plain
from runs.stores.mongo.database import Document, MongoDatabase

__all__ = ["versions_in_database"]


def versions_in_database(mongo: MongoDatabase, name: str) -> list[StoredArtifact]:
    """Return the versions of an artifact in a database, the oldest first.

    Raises:
        StoreError: If they cannot be read.
    """
    with mongo.errors():
        found = list(mongo.collections.artifacts.find({"name": name}, sort=[("version", 1)]))
    return [_of_database(mongo, document) for document in found]


def _of_database(mongo: MongoDatabase, document: Document) -> StoredArtifact:
    def read(key: Any) -> bytes:
        with mongo.errors():
            return mongo.fs.get(key).read()

    listed = document.get("files")
    files = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    metadata = plain(restore(document.get("metadata"), read))
    created = document.get("created")
    return StoredArtifact(
        str(document.get("name")),
        int(document.get("version") or 0),
        str(document.get("type") or ""),
        str(document.get("digest") or ""),
        created.replace(tzinfo=UTC) if isinstance(created, datetime) else None,
        int(document.get("bytes") or 0),
        int(document.get("num_files") or len(files)),
        metadata if isinstance(metadata, dict) else {},
        tuple(map(str, document.get("made_by") or ())),
        tuple(map(str, document.get("used_by") or ())),
        {str(one.get("path")): _content_in_database(mongo, one) for one in files},
        {str(one.get("path")): int(one.get("bytes") or 0) for one in files},
    )


def _content_in_database(mongo: MongoDatabase, file: Document) -> Content:
    def open_() -> BinaryIO:
        with mongo.errors():
            try:
                return mongo.fs.get(file.get("file_id"))
            except gridfs.errors.NoFile as error:
                raise StoreError(f"{file.get('path')!r} is not in the database") from error

    return Content(str(file.get("path")), open_)
