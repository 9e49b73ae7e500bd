"""Versions of artifacts in a MongoDB database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sacristan.observers.artifacts.store import Lineage
from sacristan.observers.mongo.documents import restore
from sacristan.runs.query.flattening import mappings_in
from sacristan.runs.stores.content import Content, StoredArtifact
from sacristan.runs.stores.mongo.database import Document, MongoDatabase
from sacristan.runs.stores.mongo.documents import from_bson

__all__ = ["lineage_in_database", "versions_in_database"]


def versions_in_database(mongo: MongoDatabase, name: str) -> list[StoredArtifact]:
    """Return all versions of an artifact, oldest first."""
    with mongo.errors():
        documents = list(mongo.collections.artifacts.find({"name": name}, sort=[("version", 1)]))
    return [_stored(mongo, document) for document in documents]


def lineage_in_database(mongo: MongoDatabase, name: str, version: int) -> Lineage:
    """Return the runs that made and used a version of an artifact; none if it is not there."""
    with mongo.errors():
        wanted = {"name": name, "version": version}
        found = mongo.collections.artifacts.find_one(wanted, {"made_by": 1, "used_by": 1}) or {}
    return Lineage(_texts(found, "made_by"), _texts(found, "used_by"))


def _stored(mongo: MongoDatabase, document: Document) -> StoredArtifact:
    # Other programs may have written the document.
    files, created = mappings_in(document.get("files")), document.get("created")
    return StoredArtifact(
        str(document.get("name")),
        _number(document, "version"),
        str(document.get("type") or ""),
        str(document.get("digest") or ""),
        created.replace(tzinfo=UTC) if isinstance(created, datetime) else None,
        _number(document, "bytes"),
        _number(document, "num_files") or len(files),
        _metadata(mongo, document),
        _texts(document, "made_by"),
        _texts(document, "used_by"),
        {str(file.get("path")): _content(mongo, file) for file in files},
        {str(file.get("path")): _number(file, "bytes") for file in files},
    )


def _texts(document: Document, name: str) -> tuple[str, ...]:
    return tuple(map(str, document.get(name) or ()))


def _number(document: Document, name: str) -> int:
    return int(document.get(name) or 0)


def _metadata(mongo: MongoDatabase, document: Document) -> dict[str, Any]:
    with mongo.errors():
        metadata = from_bson(restore(document.get("metadata"), lambda key: mongo.fs.get(key).read()))
    return metadata if isinstance(metadata, dict) else {}


def _content(mongo: MongoDatabase, file: Document) -> Content:
    name = str(file.get("path"))
    return Content(name, lambda: mongo.open_file(file.get("file_id"), repr(name)))
