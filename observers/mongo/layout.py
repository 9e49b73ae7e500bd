"""The layout of a database of runs: its collections, by their prefix; no other module knows what they are called.

    runs              one document per run, as Sacred has it
    metrics           the points of one metric of one run, as Sacred has them, up to a cap
    metrics_chunks    points beyond that cap
    media             one document per logged medium: an image, a sound, a table and so on
    artifacts         one document per version of an artifact
    sweeps, sweep_... sweeps: what they are, who has which trial, which agents there are, and the trials
    removed           uids of runs that were removed, so that nobody delivers them again, and contents about to go
    fs.files, .chunks contents of files, in GridFS

A prefix `lab` makes `lab_runs`, `lab_metrics` and so on; Sacred's deprecated `collection` names that of runs alone.
GridFS is shared by all prefixes of a database: that is where Sacred puts files, and where incense and Omniboard look
for them.
"""

from __future__ import annotations

import re
from typing import Any

from pymongo.collection import Collection
from pymongo.database import Database

from observers.errors import DestinationError

__all__ = ["Collections", "Document", "check_collection", "may_name_files"]

Document = dict[str, Any]

_RESERVED = (
    "metrics",
    "metrics_chunks",
    "media",
    "artifacts",
    "removed",
    "sweeps",
    "sweep_claims",
    "sweep_agents",
    "sweep_trials",
    "sweep_journal",
    "_properties",
    "search_space",
    "search_spaces",
)
# These collections hold no id of a file; others, also of other programs, may.
_WITHOUT_FILES = re.compile(r"fs\..*|system\..*|(.*_)?(metrics|metrics_chunks|removed|sweeps|sweep_\w+)")


class Collections:
    """The collections of one prefix of a database; making this object does not ask the server for anything.

    Args:
        database: The database.
        prefix: Put before the names, with an underscore; empty for none.
        collection: What the collection of runs is called whatever the prefix; empty for what that makes it.

    Attributes:
        runs, metrics, chunks, media, artifacts, removed: The collections of the prefix.
        sweeps, sweep_claims, sweep_agents, sweep_trials: Those of sweeps.
        sweep_journal: Trials of sweeps of earlier versions.
        files, file_chunks: Those of GridFS.
    """

    def __init__(self, database: Database[Document], prefix: str = "", collection: str = "") -> None:
        start = f"{prefix}_" if prefix else ""
        self.database = database
        self.prefix = prefix
        self.collection = collection
        self.runs: Collection[Document] = database[collection or f"{start}runs"]
        self.metrics: Collection[Document] = database[f"{start}metrics"]
        self.chunks: Collection[Document] = database[f"{start}metrics_chunks"]
        self.media: Collection[Document] = database[f"{start}media"]
        self.artifacts: Collection[Document] = database[f"{start}artifacts"]
        self.removed: Collection[Document] = database[f"{start}removed"]
        self.sweeps: Collection[Document] = database[f"{start}sweeps"]
        self.sweep_claims: Collection[Document] = database[f"{start}sweep_claims"]
        self.sweep_agents: Collection[Document] = database[f"{start}sweep_agents"]
        self.sweep_trials: Collection[Document] = database[f"{start}sweep_trials"]
        self.sweep_journal: Collection[Document] = database[f"{start}sweep_journal"]
        self.files: Collection[Document] = database.fs.files
        self.file_chunks: Collection[Document] = database.fs.chunks


def check_collection(name: str) -> str:
    """Return the name of a collection of runs.

    Raises:
        DestinationError: If that is one of the others.
    """
    if name in _RESERVED or name.startswith(("fs.", "system.")):
        raise DestinationError(
            f"collection: got {name!r}, which holds something else; choose another name for the runs"
        )
    return name


def may_name_files(collection: str) -> bool:
    """Tell whether documents of a collection, of any prefix, may hold ids of files in GridFS."""
    return not _WITHOUT_FILES.fullmatch(collection)
