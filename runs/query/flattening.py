"""Nested documents by dotted names, and the differences between two of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["Changes", "changes", "dotted", "entry_at", "is_same", "shallowest"]


def dotted(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the entries of nested mappings by their dotted names; an empty mapping is a value."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            found |= dotted(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def shallowest(document: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return at most so many entries by their dotted names, those of few dots first; no more of it is walked."""
    found: dict[str, Any] = {}
    level: list[tuple[str, Mapping[str, Any]]] = [("", document)]
    while level and len(found) < most:
        below: list[tuple[str, Mapping[str, Any]]] = []
        for prefix, part in level:
            for key, value in part.items():
                if isinstance(value, Mapping) and value:
                    below.append((f"{prefix}{key}.", value))
                else:
                    found[f"{prefix}{key}"] = value
                    if len(found) == most:
                        return found
        level = below
    return found


def entry_at(document: Any, path: str) -> Any:
    """Return the entry at a dotted path, None if there is none; keys with dots of their own are found too."""
    if not path:
        return document
    if not isinstance(document, Mapping):
        return None
    if path in document:
        return document[path]
    parts = path.split(".")
    for count in range(1, len(parts)):
        head = ".".join(parts[:count])
        if head in document:
            return entry_at(document[head], ".".join(parts[count:]))
    return None


@dataclasses.dataclass(frozen=True)
class Changes:
    """The differences between two documents.

    Attributes:
        changed: Old and new value by name.
        added: Values that only the second has.
        removed: Values that only the first has.
    """

    changed: dict[str, tuple[Any, Any]]
    added: dict[str, Any]
    removed: dict[str, Any]

    def __bool__(self) -> bool:
        return bool(self.changed or self.added or self.removed)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Changes:
    """Return what differs between two flat documents; NaN is the same as NaN."""
    return Changes(
        {name: (old[name], new[name]) for name in old if name in new and not is_same(old[name], new[name])},
        {name: new[name] for name in new if name not in old},
        {name: old[name] for name in old if name not in new},
    )


def is_same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same; True is not 1, and NaN is NaN."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    return bool(one == other) or (one != one and other != other)
