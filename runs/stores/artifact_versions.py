"""`StoredArtifact`: one version of an artifact in any store, with the runs that made and used it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from runs.stores.content import Content

__all__ = ["StoredArtifact"]


@dataclasses.dataclass(frozen=True)
class StoredArtifact:
    """One version of an artifact.

    Attributes:
        name: Name of the artifact.
        version: 1 for the first version; each store counts on its own.
        type: Such as dataset, model, code.
        digest: SHA-256 over the names and SHA-256 of all files.
        created: When it was logged, in UTC.
        num_bytes: Size of all files together.
        num_files: Number of files.
        metadata: The metadata that it was first logged with.
        made_by, used_by: Uids of the runs that logged it, and of those that used it.
        files: Its files by path; in a database as many as fit into a document.
        sizes: Their sizes in bytes, by path.
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
