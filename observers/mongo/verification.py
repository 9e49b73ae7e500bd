"""Asking a database whether it has a run as the run's folder has it: what was sent is not taken to be there.

Databases lose things that they have confirmed: they are dropped, restarted empty, restored from an older copy, or
somebody removes a document. What is asked for here is counted by the server, and hardly anything is transferred.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import bson

from observers.mongo.artifacts import artifact_keys
from observers.mongo.contents import incomplete_files
from observers.mongo.documents import files_in
from observers.mongo.layout import Collections, Document
from observers.mongo.media import len_media
from observers.mongo.points import count_points, find_lost_metrics

__all__ = ["Lost", "find_lost"]

# Metrics that are named where many are lost.
_SHOWN = 5


class Lost(NamedTuple):
    """Parts of a run that a database lacks.

    Attributes:
        parts: In words; none if it has everything.
        metrics: Ids of the documents of metrics that have been cut short.
        files: Ids of the files in GridFS that are not there, or not whole.
    """

    parts: list[str]
    metrics: set[Any]
    files: set[Any]


def find_lost(
    folder: Path,
    collections: Collections,
    run: Mapping[str, Any],
    run_id: Any,
    sent: Mapping[str, Any],
    stored: Iterable[Any] = (),
) -> Lost:
    """Ask the database, and return what it lacks.

    Args:
        folder: The run's folder.
        collections: Where the run was sent to.
        run: What stands in its `run.json`.
        run_id: The `_id` of its document.
        sent: Entries that the document is to have.
        stored: Ids of further files that are to be there.

    Raises:
        pymongo.errors.PyMongoError: If the database cannot be reached or refuses.
    """
    uid = run["uid"]
    document = collections.runs.find_one({"_id": run_id, "uid": uid})
    if document is None:
        return Lost(["the run's document"], set(), set())
    parts = [f"{name!r} of its document" for name, value in sent.items() if not _is_same(document.get(name), value)]
    lost_metrics, cut = find_lost_metrics(collections, run_id, uid, count_points(folder))
    if lost_metrics:
        parts.append(f"points of {_listed(lost_metrics)}")
    files = {*stored, *_ids_in(document)}
    num_media = 0
    for medium in collections.media.find({"run_id": run_id, "uid": uid}):
        num_media += 1
        files |= set(_ids_in(medium))
    if num_media < len_media(folder):
        parts.append(f"{len_media(folder) - num_media} media")
    artifacts = _artifacts(collections, run)
    for key, title in artifact_keys(run).items():
        if key not in artifacts:
            parts.append(title)
    for artifact in artifacts.values():
        files |= set(_ids_in(artifact))
    lost_files = incomplete_files(collections, files)
    if lost_files:
        parts.append(f"{len(lost_files)} files")
    return Lost(parts, cut, lost_files)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _is_same(there: Any, sent: Any) -> bool:
    # Compared as they are stored: NaN, times, and integers of different lengths compare in ways of their own.
    return bson.encode({"": there}) == bson.encode({"": sent})


def _artifacts(collections: Collections, run: Mapping[str, Any]) -> dict[tuple[str, Any], Document]:
    """Return the documents of the run's artifacts by relation and id, those that name the run."""
    keys = artifact_keys(run)
    ids = list({key for _, key in keys})
    found = {document["_id"]: document for document in collections.artifacts.find({"_id": {"$in": ids}})} if ids else {}
    return {
        (relation, key): found[key]
        for relation, key in keys
        if key in found and run["uid"] in found[key].get(relation, ())
    }


def _ids_in(document: Document) -> Iterator[Any]:
    """Yield the ids of all files that a document names; its own id is none."""
    entries = [value for name, value in document.items() if name not in ("_id", "run_id")]
    yield from files_in(entries)
    yield from _object_ids(entries)


def _object_ids(value: Any) -> Iterator[Any]:
    if isinstance(value, bson.ObjectId):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _object_ids(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _object_ids(item)
