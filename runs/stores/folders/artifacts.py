"""Versions of artifacts beside the runs of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from sacristan.observers.artifacts.store import ArtifactStore, Lineage
from sacristan.observers.artifacts.version import ArtifactFile, ArtifactVersion
from sacristan.observers.errors import ArtifactError
from sacristan.runs.errors import StoreError
from sacristan.runs.stores.content import Content, StoredArtifact

__all__ = ["lineage_in_folder", "versions_in_folder"]


def lineage_in_folder(folder: Path, name: str, version: int) -> Lineage:
    """Return the runs that made and used a version; none if it is missing or damaged. The name is not trusted."""
    try:
        return ArtifactStore(folder).lineage(name, version)
    except (ArtifactError, OSError, ValueError):  # such as a name that would lead out of the folder
        return Lineage((), ())


def versions_in_folder(folder: Path, name: str) -> list[StoredArtifact]:
    """Return all readable versions of an artifact, oldest first; none for an unknown name."""
    store = ArtifactStore(folder)
    if name not in store.names():  # other names might lead out of the folder
        return []
    try:
        return [_stored(store, version) for version in store.versions(name)]
    except ArtifactError as error:
        raise StoreError(str(error)) from error
    except OSError as error:
        raise StoreError(f"{store.root} cannot be read ({error.strerror})") from error


def _stored(store: ArtifactStore, version: ArtifactVersion) -> StoredArtifact:
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
        {file.path: _content(version, file) for file in version.files},
        {file.path: file.bytes for file in version.files},
    )


def _content(version: ArtifactVersion, file: ArtifactFile) -> Content:
    def open_() -> BinaryIO:
        try:
            return version.stored(file)
        except ArtifactError as error:
            raise StoreError(str(error)) from error

    return Content(file.path, open_)
