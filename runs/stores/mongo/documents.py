"""Runs' documents in MongoDB: their values as recorded, and the fields that a list of runs shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import bson

from observers.record.identity import true_status
from runs.query.flattening import mapping_of
from runs.query.serialized import without_pickles
from runs.query.times import DURATION, DURATION_FIELDS, duration_s, last_sign
from runs.stores.mongo.database import Document
from runs.stores.mongo.filters import OMNIBOARD_NOTES, OMNIBOARD_TAGS, stored_path

__all__ = [
    "STATUS_FIELDS",
    "has_changed_keys",
    "note_in",
    "plain",
    "projection_of",
    "row_in",
    "tags_in",
    "value_at",
    "with_dots",
]

# The fields that `true_status` reads.
STATUS_FIELDS = ("status", "lease", "heartbeat", "start_time", "meta.options", "uid")
# Most values are of these types, and stay as they are.
_SAME = frozenset((type(None), bool, int, float, str))


# ---------------------------------------------------------------------- values


def plain(value: Any) -> Any:
    """Return a BSON value as JSON holds it.

    Args:
        value: The value, at any depth.

    Returns:
        The value with times in ISO 8601, decimals as numbers and other BSON types as text; keys are texts.
    """
    if isinstance(value, Mapping):
        return {str(key): item if type(item) in _SAME else plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if type(item) in _SAME else plain(item) for item in value]
    if value is None or isinstance(value, bool | float | str):
        return value
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, int):
        return int(value)  # Int64
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bson.Decimal128):
        number = value.to_decimal()
        # An integer beyond 64 bits; see `observers.mongo.documents`.
        return int(number) if number.is_finite() and number.as_tuple().exponent == 0 else float(number)
    return str(value)


def has_changed_keys(summary: Mapping[str, Any]) -> bool:
    """Tell whether a stored summary may have other keys than the names of its metrics."""
    return any("," in key or key.startswith("@") for key in summary)


def tags_in(document: Mapping[str, Any]) -> Any:
    """Return the tags in a run's document, including those set in Omniboard.

    Args:
        document: The document.

    Returns:
        A mapping of tags to True; anything else that a foreign document holds in its place.
    """
    tags, others = document.get("tags"), mapping_of(document.get("omniboard")).get("tags")
    if not isinstance(others, list) or not isinstance(tags or {}, Mapping):
        return tags
    return {**(tags or {}), **{tag: True for tag in others if isinstance(tag, str)}}


def note_in(document: Mapping[str, Any]) -> Any:
    """Return the note in a run's document: that of Omniboard if there is one, as we write ours there, too."""
    notes = mapping_of(document.get("omniboard")).get("notes")
    return notes if isinstance(notes, str) else document.get("note")


def with_dots(packages: Any) -> Any:
    """Return packages by their names, which have dots where a document's keys have commas."""
    return {name.replace(",", "."): one for name, one in packages.items()} if isinstance(packages, dict) else packages


# ---------------------------------------------------------------------- fields


# Fields that a row's field is computed from.
_MADE_OF = {
    "status": STATUS_FIELDS,
    DURATION: (*STATUS_FIELDS, *DURATION_FIELDS),
    "tags": ("tags", OMNIBOARD_TAGS),
    "note": ("note", OMNIBOARD_NOTES),
}


def projection_of(names: Iterable[str]) -> dict[str, int]:
    """Return the projection of a query whose documents `row_in` reads.

    Args:
        names: Full names of fields.

    Returns:
        The projection, without any path below another one: MongoDB rejects both together.
    """
    paths = {path for name in names for path in _MADE_OF.get(name) or (stored_path(name),)}
    kept: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith(f"{other}.") for other in kept):
            kept.append(path)
    return dict.fromkeys(kept or ["_id"], 1)


def row_in(document: Document, names: Iterable[str]) -> Document:
    """Return fields of a document.

    Args:
        document: The document, with at least `projection_of(names)`.
        names: Full names of fields; `_id` is skipped.

    Returns:
        The values by name. A summary with changed keys is left out, as only the run can look up its metrics.
    """
    row = {}
    for name in names:
        if name != "_id":
            computed = _COMPUTED.get(name)
            row[name] = computed(document) if computed is not None else _plain_at(document, stored_path(name))
    if isinstance(row.get("summary"), Mapping) and has_changed_keys(row["summary"]):
        del row["summary"]
    return row


def _status(document: Document) -> Any:
    return true_status({**document, "status": plain(document.get("status"))}, document.get("lease"))


def _duration(document: Document) -> float | None:
    lease = plain(document.get("lease"))
    last = last_sign(true_status(document, lease), lease) if document.get("status") == "RUNNING" else None
    return duration_s({field: plain(document.get(field)) for field in DURATION_FIELDS}, last)


_COMPUTED: dict[str, Callable[[Document], Any]] = {
    "status": _status,
    DURATION: _duration,
    "tags": lambda document: tags_in(plain({name: document.get(name) for name in ("tags", "omniboard")})),
    "note": lambda document: plain(note_in(document)),
}


def _plain_at(document: Document, path: str) -> Any:
    value = plain(value_at(document, path))
    is_result = path.partition(".")[0] == "result"
    return without_pickles(value, twice=is_result) if isinstance(value, dict | list) else value


def value_at(document: Any, path: str) -> Any:
    """Return the value at a path, as queries see it: a key with dots is none.

    Args:
        document: The document.
        path: The keys, joined by dots; see `runs.stores.mongo.filters.stored_path`.

    Returns:
        The value; None if there is none.
    """
    for key in path.split("."):
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document
