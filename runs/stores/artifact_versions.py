"""`StoredArtifact`: a version of an artifact, with the runs behind it and after it, in whatever store it lies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from observers.artifacts.store import ArtifactStore
from observers.artifacts.version import ArtifactFile, ArtifactVersion
from observers.errors import ArtifactError
from runs.errors import StoreError
from runs.stores.content import Content

__all__ = ["StoredArtifact", "versions_in_folder"]


@dataclasses.dataclass(frozen=True)
class StoredArtifact:
    """One version of an artifact.

    Attributes:
        name: Of the artifact.
        version: 1 for the first; in a database by its own count.
        type: Such as dataset, model, code.
        digest: SHA-256 over the names and SHA-256 of all files.
        created: When, in UTC.
        num_bytes: Length of all files together.
        num_files: How many there are.
        metadata: What was logged with it first.
        made_by, used_by: Uids of the runs that logged it, and of those that used it.
        files: Its files by path; in a database as many as a document holds.
        sizes: Their lengths.
    """

    name: str
    version: int
    type: str
    digest: str
    created: datetime | None
    num_bytes: int
    num_files: int
    metadata: Mapping[str, Any]
    made_by: tuple[str, ...]
    used_by: tuple[str, ...]
    files: Mapping[str, Content]
    sizes: Mapping[str, int]


def versions_in_folder(folder: Path, name: str) -> list[StoredArtifact]:
    """Return the versions of an artifact beside the runs of a folder, the oldest first.

    Raises:
        StoreError: If they cannot be read.
    """
    store = ArtifactStore(folder)
    if name not in store.names():  # which leads nowhere else
        return []
    try:
        return [_of_folder(store, version) for version in store.versions(name)]
    except ArtifactError as error:
        raise StoreError(str(error)) from error
    except OSError as error:
        raise StoreError(f"{store.root} cannot be read ({error.strerror})") from error


def _of_folder(store: ArtifactStore, version: ArtifactVersion) -> StoredArtifact:
    lineage = store.lineage(version.name, version.version)
    return StoredArtifact(
        version.name,
        version.version,
        version.type,
        version.digest,
        version.created,
        version.bytes,
        len(version.files),
        version.metadata,
        lineage.made_by,
        lineage.used_by,
        {file.path: _content_in_folder(version, file) for file in version.files},
        {file.path: file.bytes for file in version.files},
    )


def _content_in_folder(version: ArtifactVersion, file: ArtifactFile) -> Content:
    def open_() -> BinaryIO:
        try:
            return version.stored(file)
        except ArtifactError as error:
            raise StoreError(str(error)) from error

    return Content(file.path, open_)
