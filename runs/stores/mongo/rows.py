"""Fields of a run's document in a database, as a list of runs shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from observers.record.identity import true_status
from runs.query.serialized import without_pickles
from runs.query.times import DURATION, DURATION_FIELDS, duration_s, last_sign
from runs.stores.mongo.bson_values import has_changed_keys, note_in, plain, tags_in
from runs.stores.mongo.database import Document
from runs.stores.mongo.filters import OMNIBOARD_NOTES, OMNIBOARD_TAGS, stored_path
from runs.stores.mongo.run import STATUS_FIELDS

__all__ = ["projection_of", "row_in", "value_at"]


def projection_of(names: Sequence[str]) -> dict[str, int]:
    """Return the projection of a query whose documents `row_in` reads; a path and one below it would collide."""
    wanted = {stored_path(name) for name in names if name != DURATION}
    wanted |= set(STATUS_FIELDS) if {"status", DURATION} & set(names) else set()
    wanted |= set(DURATION_FIELDS) if DURATION in names else set()
    wanted |= {OMNIBOARD_TAGS} if "tags" in names else set()
    wanted |= {OMNIBOARD_NOTES} if "note" in names else set()
    kept: list[str] = []
    for path in sorted(wanted):
        if not any(path == other or path.startswith(f"{other}.") for other in kept):
            kept.append(path)
    return dict.fromkeys(kept or ["_id"], 1)


def row_in(document: Document, names: Iterable[str]) -> Document:
    """Return fields of a document by their full names."""
    row = {name: _plain_at(document, stored_path(name)) for name in names if name != "_id"}
    if isinstance(row.get("summary"), Mapping) and has_changed_keys(row["summary"]):
        del row["summary"]  # the run looks the names up
    if "tags" in row:
        row["tags"] = tags_in(plain({name: document.get(name) for name in ("tags", "omniboard")}))
    if "note" in row:
        row["note"] = plain(note_in(document))
    if "status" in row:
        row["status"] = true_status({**document, "status": row["status"]}, document.get("lease"))
    if DURATION in row:
        lease = plain(document.get("lease"))
        last = last_sign(true_status(document, lease), lease) if document.get("status") == "RUNNING" else None
        row[DURATION] = duration_s({field: plain(document.get(field)) for field in DURATION_FIELDS}, last)
    return row


def _plain_at(document: Document, path: str) -> Any:
    value = plain(value_at(document, path))
    of_result = path.partition(".")[0] == "result"
    return without_pickles(value, twice=of_result) if isinstance(value, dict | list) else value


def value_at(document: Any, path: str) -> Any:
    """Return what a document holds at a dotted path; None if it is not there."""
    for key in path.split("."):
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document
