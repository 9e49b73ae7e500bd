"""Asking a database whether it has all of a run; what was sent is not assumed to be there.

Databases lose data that they have confirmed: they are dropped, restarted empty, restored from an older copy, or a
document is removed. The server counts everything that is checked here, so hardly any data is transferred.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import bson

from sacristan.configs.map import abbreviated
from sacristan.observers.mongo.contents import artifact_keys, incomplete_files
from sacristan.observers.mongo.documents import files_in
from sacristan.observers.mongo.layout import Collections, Document
from sacristan.observers.mongo.series import count_points, find_lost_metrics, len_media

# Metrics named in a message.
_SHOWN = 5


class Lost(NamedTuple):
    """What a database lacks: in words, ids of documents of metrics that were cut short, and of files in GridFS."""

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
    """Ask the database for everything in a run's folder, the entries `sent` and the files `stored`."""
    uid = run["uid"]
    document = collections.runs.find_one({"_id": run_id, "uid": uid})
    if document is None:
        return Lost(["the run's document"], set(), set())
    parts = [f"{name!r} of its document" for name, value in sent.items() if not _is_same(document.get(name), value)]
    lost_metrics, cut = find_lost_metrics(collections, run_id, uid, count_points(folder))
    if lost_metrics:
        parts.append(f"points of {abbreviated(map(repr, lost_metrics), _SHOWN, ' and {} more')}")
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


def _is_same(there: Any, sent: Any) -> bool:
    # Compared as BSON, because NaN, times and integers of different lengths do not compare equal.
    return bson.encode({"": there}) == bson.encode({"": sent})


def _artifacts(collections: Collections, run: Mapping[str, Any]) -> dict[tuple[str, Any], Document]:
    """Return the documents of the run's artifacts that name the run, by relation and id."""
    keys = artifact_keys(run)
    ids = list({key for _, key in keys})
    documents = (
        {document["_id"]: document for document in collections.artifacts.find({"_id": {"$in": ids}})} if ids else {}
    )
    return {
        (relation, key): documents[key]
        for relation, key in keys
        if key in documents and run["uid"] in documents[key].get(relation, ())
    }


def _ids_in(document: Document) -> Iterator[Any]:
    """Yield the ids of all files that a document names, but not its own id."""
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
