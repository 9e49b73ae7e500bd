"""The indexes that reading and delivering go by, made as far as the user of the database may make any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymongo import ASCENDING, DESCENDING
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from observers.mongo.layout import Collections, Document

__all__ = ["make_artifact_indexes", "make_media_indexes", "make_run_indexes"]

_Keys = Sequence[tuple[str, int]]

# Not authorized; made by somebody else with other options, or under another name; and not unique in what is there.
_PASSED_OVER = (13, 85, 86, 11000)
_WITH_UID = {"partialFilterExpression": {"uid": {"$exists": True}}}


def make_run_indexes(collections: Collections) -> None:
    """Make those of runs, their points and their files.

    Raises:
        pymongo.errors.PyMongoError: If the database cannot be reached.
    """
    _make(collections.runs, [("uid", ASCENDING)], unique=True, **_WITH_UID)
    _make(collections.runs, [("start_time", DESCENDING)])
    _make(collections.runs, [("status", ASCENDING), ("start_time", DESCENDING)])
    # By these a query for the best runs, or for those of a certain config, looks at no other run.
    _make(collections.runs, [("summary.$**", ASCENDING)])
    _make(collections.runs, [("config.$**", ASCENDING)])
    _make(collections.metrics, [("run_id", ASCENDING), ("name", ASCENDING)])
    _make(collections.chunks, [("run_id", ASCENDING), ("name", ASCENDING), ("index", ASCENDING)])
    _make(collections.files, [("uid", ASCENDING)], **_WITH_UID)
    _make_file_indexes(collections)


def make_media_indexes(collections: Collections) -> None:
    """Make that of media; raises as `make_run_indexes` does."""
    _make(collections.media, [("run_id", ASCENDING), ("name", ASCENDING), ("step", ASCENDING)])


def make_artifact_indexes(collections: Collections) -> None:
    """Make those of artifacts and their contents; raises as `make_run_indexes` does."""
    _make(collections.artifacts, [("name", ASCENDING), ("version", DESCENDING)], unique=True)
    _make(collections.artifacts, [("made_by", ASCENDING)])
    _make(collections.artifacts, [("used_by", ASCENDING)])
    _make_file_indexes(collections)


def _make_file_indexes(collections: Collections) -> None:
    """Make those that GridFS has."""
    _make(collections.files, [("filename", ASCENDING), ("uploadDate", ASCENDING)])
    _make(collections.file_chunks, [("files_id", ASCENDING), ("n", ASCENDING)], unique=True)


def _make(collection: Collection[Document], keys: _Keys, **options: Any) -> None:
    try:
        collection.create_index(keys, **options)
    except OperationFailure as error:
        if error.code not in _PASSED_OVER:
            raise
