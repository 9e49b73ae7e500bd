"""Artifacts in MongoDB: delivering those that a run logged and used, and downloading a version.

Resending an artifact changes nothing.

`artifacts` has one document for each content of an artifact, under an id made from name and digest:

    name, version, type, digest, bytes, num_files, metadata, created
    files        [{path, sha256, bytes, file_id}], the first ones, up to about 2 MB
    manifest_id  the whole manifest, as a file
    made_by, used_by  uids of runs

The version is the folder's number if the database has it free, otherwise the next free one. Contents are in GridFS,
each once for all artifacts, under an id made from their SHA-256. They are sent before the document, so a document never
names a missing file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import gridfs
from pymongo.errors import DuplicateKeyError

from sacristan.observers.artifacts.intake import Incoming
from sacristan.observers.artifacts.store import ArtifactStore
from sacristan.observers.artifacts.version import ArtifactVersion, Reference, from_manifest, parse_reference
from sacristan.observers.errors import ArtifactDamagedError, ArtifactError
from sacristan.observers.mongo.contents import StoredContents, Upload, content_id
from sacristan.observers.mongo.documents import Packer, files_in, object_id
from sacristan.observers.mongo.layout import Collections, Document, make_artifact_indexes
from sacristan.observers.record.json_text import parse_json

__all__ = ["ArtifactDelivery", "artifact_id", "artifact_keys", "fetch"]

_log = logging.getLogger(__name__)

MAX_FILES_BYTES = 2 * 2**20
RELATIONS = {"artifacts_logged": "made_by", "artifacts_used": "used_by"}
# The owner of large entries in metadata, which belong to no run.
_OWNER = "artifacts"

_Entry = Mapping[str, Any]


def artifact_id(name: str, digest: str) -> Any:
    """Return the `_id` of the document of one content of an artifact."""
    return object_id("artifact", name, digest)


class ArtifactDelivery:
    """Delivers the artifacts of one run to a database.

    An artifact that cannot be read in the folder is reported once and left out; the rest of the run is delivered.
    """

    def __init__(self, base: Path, collections: Collections) -> None:
        self._store = ArtifactStore(base)
        self._collections = collections
        self._upload = Upload(collections)
        self._contents = StoredContents(collections)
        self._numbers: dict[tuple, int] = {}
        self._failed: set[tuple] = set()
        self._work: tuple[tuple, Iterator[None]] | None = None

    def restart(self, incomplete: Collection[Any]) -> None:
        """Start again, and resend incomplete files."""
        self._numbers.clear()
        self._work = None
        self._upload.incomplete |= set(incomplete)
        self._contents.forget(incomplete)

    def advance(self, run: Mapping[str, Any], seconds: float | None = None) -> bool:
        """Deliver the artifacts that a run's record names; return whether all are delivered.

        This stops after about `seconds`. After a PyMongoError, call it again later.
        """
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
        return True

    def is_complete(self, run: Mapping[str, Any]) -> bool:
        """Tell whether all artifacts that a run's record names are delivered."""
        return all(_key(relation, entry) in self._numbers for relation, entry in _entries(run))

    def delivered(self, run: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Return the delivered artifacts by relation, each with its version in the database, for the run's document."""
        found: dict[str, list[dict[str, Any]]] = {relation: [] for relation in RELATIONS if relation in run}
        for relation, entry in _entries(run):
            number = self._numbers.get(_key(relation, entry))
            if number is not None:
                found[relation].append({**entry, "version": number})
        return found

    def _deliver(self, relation: str, entry: _Entry, uid: str) -> Iterator[None]:
        """Deliver one artifact, and yield after each piece."""
        wanted = {"_id": artifact_id(entry["name"], entry["digest"])}
        change = {"$addToSet": {RELATIONS[relation]: uid}}
        number = self._change(wanted, change)
        if number is None or self._upload.incomplete:
            make_artifact_indexes(self._collections)
            version = self._store.resolve(f"{entry['name']}@{entry['digest']}")
            for file in {file.sha256: file for file in version.files}.values():
                with version.stored(file) as stream:
                    yield from self._upload.send(stream, file.sha256, file.path)
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


# ---------------------------------------------------------------------- downloading a version of an artifact fro


def fetch(collections: Collections, reference: str, root: Path) -> ArtifactVersion | None:
    """Download a version of an artifact, unless the local store below `root` has its contents; None if there is none.

    `reference` is as for `ArtifactStore.resolve`, with the database's version numbers. Raises ArtifactError if it is
    invalid or ambiguous, or the store cannot be written, ArtifactDamagedError if the database's copy is damaged, and
    PyMongoError if the database cannot be reached or refuses.
    """
    document = _find(collections, parse_reference(reference))
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


def _find(collections: Collections, wanted: Reference) -> Document | None:
    if wanted.digest is None:
        number = {} if wanted.number is None else {"version": wanted.number}
        return collections.artifacts.find_one({"name": wanted.name, **number}, {"files": 0}, sort=[("version", -1)])
    query = {"name": wanted.name, "digest": re.compile(f"^{wanted.digest}")}
    matches = list(collections.artifacts.find(query, {"files": 0}).limit(2))
    if len(matches) > 1:
        raise ArtifactError(f"{wanted.name}@{wanted.digest}: it stands for several contents; give more digits")
    return matches[0] if matches else None


def _download(version: ArtifactVersion, files: gridfs.GridFS, root: Path) -> None:
    with Incoming(root) as incoming:
        for file in {file.sha256: file for file in version.files}.values():
            if not incoming.holds(file.sha256, file.bytes):
                sha256, _ = incoming.take(files.get(content_id(file.sha256)), file.bytes)
                if sha256 != file.sha256:
                    raise ValueError(f"the content of {file.path} is not what was logged")
        incoming.publish()
