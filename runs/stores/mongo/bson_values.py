"""Values of a run's document in MongoDB, as they were recorded: BSON has kinds of its own, and refuses some keys."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import bson

__all__ = ["has_changed_keys", "note_in", "plain", "tags_in", "with_dots"]

# What most values are, and nothing is to be done about.
_SAME = frozenset((type(None), bool, int, float, str))


def plain(value: Any) -> Any:
    """Return what BSON holds as what JSON holds: times in ISO form, other kinds as text."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return int(value)  # Int64
    if isinstance(value, Mapping):
        return {str(key): item if type(item) in _SAME else plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if type(item) in _SAME else plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bson.Decimal128):
        number = value.to_decimal()
        # An integer beyond 64 bits; see `observers.mongo.documents`.
        return int(number) if number.is_finite() and number.as_tuple().exponent == 0 else float(number)
    return str(value)


def has_changed_keys(summary: Mapping[str, Any]) -> bool:
    """Tell whether a summary in a database may have keys that are not the names of its metrics."""
    return any("," in key or key.startswith("@") for key in summary)


def tags_in(document: Mapping[str, Any]) -> Any:
    """Return the tags of a run's document, those set in Omniboard among them; what is odd stays as it is."""
    tags, omniboard = document.get("tags"), document.get("omniboard")
    others = omniboard.get("tags") if isinstance(omniboard, Mapping) else None
    if not isinstance(others, list) or not isinstance(tags or {}, Mapping):
        return tags
    return {**(tags or {}), **{tag: True for tag in others if isinstance(tag, str)}}


def note_in(document: Mapping[str, Any]) -> Any:
    """Return the note of a run's document: that of Omniboard if there is one, as ours are written there, too."""
    omniboard = document.get("omniboard")
    notes = omniboard.get("notes") if isinstance(omniboard, Mapping) else None
    return notes if isinstance(notes, str) else document.get("note")


def with_dots(packages: Any) -> Any:
    """Return packages under their names, which have dots where the keys of a document have commas."""
    return {name.replace(",", "."): one for name, one in packages.items()} if isinstance(packages, dict) else packages
