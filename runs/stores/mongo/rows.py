"""Runs' documents in MongoDB: their values as recorded, and the fields that a list of runs shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import bson

from sacristan.configs.map import value_at
from sacristan.observers.record.identity import true_status
from sacristan.runs.query.flattening import mapping_of, without_pickles
from sacristan.runs.query.times import DURATION, DURATION_FIELDS, duration_s, last_sign
from sacristan.runs.stores.mongo.database import Document
from sacristan.runs.stores.mongo.filters import OMNIBOARD_NOTES, OMNIBOARD_TAGS, stored_path

__all__ = [
    "STATUS_FIELDS",
    "from_bson",
    "has_changed_keys",
    "note_in",
    "projection_of",
    "row_in",
    "tags_in",
    "with_dots",
]

# The fields that `true_status` reads.
STATUS_FIELDS = ("status", "lease", "heartbeat", "start_time", "meta.options", "uid")
# Most values are of these types, and stay as they are.
_SAME = frozenset((type(None), bool, int, float, str))


# ---------------------------------------------------------------------- values


def from_bson(value: Any) -> Any:
    """Return a BSON value as JSON: times in ISO 8601, decimals as numbers, keys and other types as text."""
    if isinstance(value, Mapping):
        return {str(key): item if type(item) in _SAME else from_bson(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if type(item) in _SAME else from_bson(item) for item in value]
    if value is None or isinstance(value, bool | float | str):
        return value
    return _from_bson_scalar(value)


def _from_bson_scalar(value: Any) -> Any:
    if isinstance(value, int):
        return int(value)  # Int64
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bson.Decimal128):
        number = value.to_decimal()
        # An integer beyond 64 bits; see `sacristan.observers.mongo.documents`.
        return int(number) if number.is_finite() and number.as_tuple().exponent == 0 else float(number)
    return str(value)


def has_changed_keys(summary: Mapping[str, Any]) -> bool:
    """Tell whether a stored summary may have other keys than the names of its metrics."""
    return any("," in key or key.startswith("@") for key in summary)


def tags_in(document: Mapping[str, Any]) -> Any:
    """Return the tags in a run's document, including those set in Omniboard, as a mapping of tags to True.

    A foreign document may hold anything else in its place, which is returned.
    """
    tags, others = document.get("tags"), mapping_of(document.get("omniboard")).get("tags")
    if not isinstance(others, list) or not isinstance(tags or {}, Mapping):
        return tags
    return {**(tags or {}), **{tag: True for tag in others if isinstance(tag, str)}}


def note_in(document: Mapping[str, Any]) -> Any:
    """Return the note in a run's document: Omniboard's if there is one, as our own is also written there."""
    notes = mapping_of(document.get("omniboard")).get("notes")
    return notes if isinstance(notes, str) else document.get("note")


def with_dots(packages: Any) -> Any:
    """Return packages by their names, with dots for the commas in a document's keys."""
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

    It has no path below another one, as MongoDB rejects both together.
    """
    paths = {path for name in names for path in _MADE_OF.get(name) or (stored_path(name),)}
    kept: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith(f"{other}.") for other in kept):
            kept.append(path)
    return dict.fromkeys(kept or ["_id"], 1)


def row_in(document: Document, names: Iterable[str]) -> Document:
    """Return fields of a document, found with `projection_of(names)`, by name; `_id` is skipped.

    A summary with changed keys is left out, as only the run can look up its metrics.
    """
    row = {}
    for name in names:
        if name != "_id":
            computed = _COMPUTED.get(name)
            row[name] = computed(document) if computed is not None else _field_at(document, stored_path(name))
    if isinstance(row.get("summary"), Mapping) and has_changed_keys(row["summary"]):
        del row["summary"]
    return row


def _status(document: Document) -> Any:
    return true_status({**document, "status": from_bson(document.get("status"))}, document.get("lease"))


def _duration(document: Document) -> float | None:
    lease = from_bson(document.get("lease"))
    last = last_sign(true_status(document, lease), lease) if document.get("status") == "RUNNING" else None
    return duration_s({field: from_bson(document.get(field)) for field in DURATION_FIELDS}, last)


_COMPUTED: dict[str, Callable[[Document], Any]] = {
    "status": _status,
    DURATION: _duration,
    "tags": lambda document: tags_in(from_bson({name: document.get(name) for name in ("tags", "omniboard")})),
    "note": lambda document: from_bson(note_in(document)),
}


def _field_at(document: Document, path: str) -> Any:
    value = from_bson(value_at(document, path))
    is_result = path.partition(".")[0] == "result"
    return without_pickles(value, twice=is_result) if isinstance(value, dict | list) else value
