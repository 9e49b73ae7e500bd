"""Downloading a version of an artifact from MongoDB into the local store."""

from __future__ import annotations

import re
from pathlib import Path

import gridfs
from pymongo.collection import Collection

from sacristan.observers.artifacts.intake import Incoming
from sacristan.observers.artifacts.version import ArtifactVersion, Reference, from_manifest, parse_reference
from sacristan.observers.errors import ArtifactDamagedError, ArtifactError
from sacristan.observers.mongo.contents import content_id
from sacristan.observers.mongo.layout import Collections, Document
from sacristan.observers.record.json_text import parse_json

__all__ = ["fetch"]


def fetch(collections: Collections, reference: str, root: Path) -> ArtifactVersion | None:
    """Download a version of an artifact, unless the local store has its contents.

    Args:
        collections: The collections of the database.
        reference: As for `ArtifactStore.resolve`, with the database's version numbers.
        root: The folder of the local store of artifacts.

    Returns:
        The version, with its contents in the local store; None if the database has no such version.

    Raises:
        ArtifactError: If the reference is invalid or ambiguous, or the store cannot be written.
        ArtifactDamagedError: If the database's copy is damaged.
        pymongo.errors.PyMongoError: If the database cannot be reached or refuses.
    """
    document = _find(collections.artifacts, parse_reference(reference))
    if document is None:
        return None
    files = gridfs.GridFS(collections.database)
    try:
        manifest = parse_json(files.get(document["manifest_id"]).read())
        version = from_manifest(manifest, document["name"], document["version"], root / "contents")
        if version.digest != document["digest"]:
            raise ValueError("its manifest is that of another content")
        _download(version, files, root)
    except OSError as error:
        raise ArtifactError(
            f"{reference}: {root} cannot be written ({error.strerror}); make room or check its permissions"
        ) from error
    except (gridfs.errors.NoFile, gridfs.errors.CorruptGridFile, KeyError, ValueError) as error:
        raise ArtifactDamagedError(f"{reference}: it is damaged in the database: {error}") from error
    return version


def _find(artifacts: Collection[Document], wanted: Reference) -> Document | None:
    if wanted.digest is None:
        number = {} if wanted.number is None else {"version": wanted.number}
        return artifacts.find_one({"name": wanted.name, **number}, {"files": 0}, sort=[("version", -1)])
    query = {"name": wanted.name, "digest": re.compile(f"^{wanted.digest}")}
    found = list(artifacts.find(query, {"files": 0}).limit(2))
    if len(found) > 1:
        raise ArtifactError(f"{wanted.name}@{wanted.digest}: it stands for several contents; give more digits")
    return found[0] if found else None


def _download(version: ArtifactVersion, files: gridfs.GridFS, root: Path) -> None:
    with Incoming(root) as incoming:
        for file in {file.sha256: file for file in version.files}.values():
            if not incoming.holds(file.sha256, file.bytes):
                sha256, _ = incoming.take(files.get(content_id(file.sha256)), file.bytes)
                if sha256 != file.sha256:
                    raise ValueError(f"the content of {file.path} is not what was logged")
        incoming.publish()
