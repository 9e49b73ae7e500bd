"""The layout of a database of runs: its collections, by their prefix, and their indexes; and how writes are confirmed.

No other module knows the names:

    runs              one document per run, as in Sacred
    metrics           the points of one metric of one run, as in Sacred, up to a cap
    metrics_chunks    points beyond that cap
    media             one document per logged medium: an image, a sound, a table and so on
    artifacts         one document per version of an artifact
    artifact_aliases  one document per move of an alias of an artifact
    removed_versions  who removed a version of an artifact
    sweeps, sweep_... sweeps: their definitions, claims, agents and trials
    views             named views of the runs
    reports, report_versions   pages of Markdown about the runs, and their earlier versions
    removed           uids of removed runs, which are not delivered again, and contents that are about to be removed
    fs.files, .chunks contents of files, in GridFS

A prefix `lab` makes these `lab_runs`, `lab_metrics` and so on. Sacred's deprecated `collection` names the collection of
runs alone. All prefixes of a database share GridFS, because that is where Sacred stores files, and where incense and
Omniboard read them.

Nothing counts as delivered, claimed or noted while one server may lose it, and an acknowledged write can still be lost.
A server that is killed loses the writes of the last tenth of a second, which are not in its journal yet. A replica set
that elects another primary rolls back the writes that no majority has, and with `w=1` in the URL, or an arbiter, the
server acknowledges such writes. Whatever the URL says, there are three ways to use a database:

    sent        Writes return when the primary has them: the data of a run, which are still on the local disk.
    confirmed   Writes return when the journals of a majority have them, with everything that was sent before.
    committed   Reads see only what a majority has.

A run is delivered once a confirmed write followed everything that was sent, and a committed read found all of it: if
another primary was elected in between, the read finds what was rolled back. See `Delivery`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import bson
from pymongo import ASCENDING, DESCENDING, ReadPreference, WriteConcern
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from sacristan.observers.errors import DestinationError

Document = dict[str, Any]

_RESERVED = (
    "metrics",
    "metrics_chunks",
    "media",
    "artifacts",
    "artifact_aliases",
    "removed",
    "removed_versions",
    "sweeps",
    "sweep_claims",
    "sweep_agents",
    "sweep_trials",
    "sweep_journal",
    "views",
    "reports",
    "report_versions",
    "_properties",
    "search_space",
    "search_spaces",
)
# Collections without ids of files; others may have some, including those of other programs.
_WITHOUT_FILES = re.compile(
    r"fs\..*|system\..*"
    r"|(.*_)?(metrics|metrics_chunks|artifact_aliases|removed|removed_versions|sweeps|sweep_\w+|views|reports|report_versions)"
)


class Collections:
    """The collections of one prefix of a database; creating this object sends nothing to the server.

    `collection` is the name of the collection of runs, regardless of the prefix. Both names are empty for the usual
    ones. `sweep_journal` has trials of sweeps of earlier versions; `files` and `file_chunks` are GridFS.
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
        self.artifact_aliases: Collection[Document] = database[f"{start}artifact_aliases"]
        self.removed_versions: Collection[Document] = database[f"{start}removed_versions"]
        self.removed: Collection[Document] = database[f"{start}removed"]
        self.sweeps: Collection[Document] = database[f"{start}sweeps"]
        self.sweep_claims: Collection[Document] = database[f"{start}sweep_claims"]
        self.sweep_agents: Collection[Document] = database[f"{start}sweep_agents"]
        self.sweep_trials: Collection[Document] = database[f"{start}sweep_trials"]
        self.sweep_journal: Collection[Document] = database[f"{start}sweep_journal"]
        self.views: Collection[Document] = database[f"{start}views"]
        self.reports: Collection[Document] = database[f"{start}reports"]
        self.report_versions: Collection[Document] = database[f"{start}report_versions"]
        self.files: Collection[Document] = database.fs.files
        self.file_chunks: Collection[Document] = database.fs.chunks

    def named(self, kind: str) -> Collection[Document]:
        """Return a collection by the name that it has here, such as `sweeps`."""
        collection: Collection[Document] = getattr(self, kind)
        return collection

    @functools.cached_property
    def sent(self) -> Collections:
        """Collections for the data of a run, where no single write matters; see `observers/mongo/layout.py`."""
        return Collections(sent(self.database), self.prefix, self.collection)

    @functools.cached_property
    def confirmed(self) -> Collections:
        """Collections for changes that must last; asks the server at the first use."""
        return Collections(confirmed(self.database, self.runs.name), self.prefix, self.collection)

    @functools.cached_property
    def committed(self) -> Collections:
        """Collections for reading what cannot be rolled back."""
        return Collections(committed(self.database), self.prefix, self.collection)


def check_collection(name: str) -> str:
    """Return the name of a collection of runs; reject one that another collection has."""
    if name in _RESERVED or name.startswith(("fs.", "system.")):
        raise DestinationError(
            f"collection: got {name!r}, which holds something else; choose another name for the runs"
        )
    return name


def may_name_files(collection: str) -> bool:
    """Tell whether documents of a collection may contain ids in GridFS; unknown ones may, so `gc` reads them."""
    return not _WITHOUT_FILES.fullmatch(collection)


# ---------------------------------------------------------------------- indexes

_Keys = Sequence[tuple[str, int]]

# Not authorized; created before with other options, or under another name; and existing values are not unique.
_PASSED_OVER = (13, 85, 86, 11000)
_WITH_UID = {"partialFilterExpression": {"uid": {"$exists": True}}}


def make_run_indexes(collections: Collections) -> None:
    """Create the indexes of runs, their points and their files, as far as the user may create any."""
    _make(collections.runs, [("uid", ASCENDING)], unique=True, **_WITH_UID)
    _make(collections.runs, [("start_time", DESCENDING)])
    _make(collections.runs, [("status", ASCENDING), ("start_time", DESCENDING)])
    # With these, queries for the best runs, or for some config, read no other runs.
    _make(collections.runs, [("summary.$**", ASCENDING)])
    _make(collections.runs, [("config.$**", ASCENDING)])
    _make(collections.metrics, [("run_id", ASCENDING), ("name", ASCENDING)])
    _make(collections.chunks, [("run_id", ASCENDING), ("name", ASCENDING), ("index", ASCENDING)])
    _make(collections.files, [("uid", ASCENDING)], **_WITH_UID)
    _make_file_indexes(collections)


def make_media_indexes(collections: Collections) -> None:
    """Create the index of media, as far as the user may create any; called before the first medium is sent."""
    _make(collections.media, [("run_id", ASCENDING), ("name", ASCENDING), ("step", ASCENDING)])


def make_artifact_indexes(collections: Collections) -> None:
    """Create the indexes that the user may create; one keeps two processes from using the same version."""
    _make(collections.artifacts, [("name", ASCENDING), ("version", DESCENDING)], unique=True)
    _make(collections.artifacts, [("made_by", ASCENDING)])
    _make(collections.artifacts, [("used_by", ASCENDING)])
    _make_file_indexes(collections)


def make_alias_indexes(collections: Collections) -> None:
    """Create the index of the aliases of artifacts, as far as the user may create any."""
    _make(collections.artifact_aliases, [("artifact", ASCENDING), ("alias", ASCENDING), ("number", DESCENDING)])


def make_sweep_indexes(collections: Collections) -> None:
    """Create the indexes of claims and trials of sweeps, as far as the user may create any."""
    _make(collections.sweep_claims, [("sweep", ASCENDING), ("trial", ASCENDING)])
    _make(collections.sweep_trials, [("study", ASCENDING), ("state", ASCENDING)])


def _make_file_indexes(collections: Collections) -> None:
    _make(collections.files, [("filename", ASCENDING), ("uploadDate", ASCENDING)])
    _make(collections.file_chunks, [("files_id", ASCENDING), ("n", ASCENDING)], unique=True)


def _make(collection: Collection[Document], keys: _Keys, **options: Any) -> None:
    try:
        collection.create_index(keys, **options)
    except OperationFailure as error:
        if error.code not in _PASSED_OVER:
            raise


# ---------------------------------------------------------------------- confirmed writes and committed reads

# How long a majority may take, unless `wtimeoutMS` in the URL says otherwise.
PATIENCE_S = 10.0
_BAD_VALUE, _UNAUTHORIZED, _NO_MAJORITY_READS = 2, 13, 148

_Database = Database[dict[str, Any]]


def sent(database: _Database) -> _Database:
    """Return a database whose writes return when the primary has them, or as many members as `w` in the URL says."""
    asked = {name: value for name, value in database.write_concern.document.items() if (name, value) != ("w", 0)}
    return _at_primary(database, WriteConcern(**{"w": 1, "wtimeout": _bound_ms(database, PATIENCE_S), **asked}))


def confirmed(database: _Database, collection: str, patience_s: float = PATIENCE_S) -> _Database:
    """Return a database whose writes return when the journals of a majority have them; `collection` must be writable.

    `--nojournal` and engines in memory reject `j`, so the server is asked. With `fsync` it writes its files instead.
    Writes raise WTimeoutError after `patience_s`, unless the URL sets `wtimeoutMS`.
    """
    sync = {"j": True} if _has_journal(database, collection) else {"fsync": True}
    return _at_primary(database, WriteConcern("majority", _bound_ms(database, patience_s), **sync))


def committed(database: _Database) -> _Database:
    """Return a database whose reads see only what a majority has; see `lacks_majority_reads`."""
    return database.with_options(read_preference=ReadPreference.PRIMARY, read_concern=ReadConcern("majority"))


def lacks_majority_reads(error: OperationFailure) -> bool:
    """Tell whether the server has no committed reads: engines in memory, and up to 4.4 if it was set to have none."""
    return error.code == _NO_MAJORITY_READS


def _at_primary(database: _Database, concern: WriteConcern) -> _Database:
    return database.with_options(
        read_preference=ReadPreference.PRIMARY, read_concern=ReadConcern("local"), write_concern=concern
    )


def _bound_ms(database: _Database, patience_s: float) -> int:
    return database.write_concern.document.get("wtimeout") or int(1000 * patience_s)


def _has_journal(database: _Database, collection: str) -> bool:
    documents: Collection[dict[str, Any]] = _at_primary(database, WriteConcern(1, j=True))[collection]
    try:
        documents.update_one({"_id": bson.ObjectId()}, {"$set": {"uid": ""}})  # there is no such document
    except OperationFailure as error:
        if error.code == _BAD_VALUE and "journal" in str(error):
            return False
        if error.code != _UNAUTHORIZED:
            raise
    return True
