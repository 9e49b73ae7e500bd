"""Nested documents: as flat mappings of dotted names, their differences, and what Sacred serialized as plain values."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from sacristan.configs.map import flattened

__all__ = [
    "Changes",
    "changes",
    "dotted",
    "entry_at",
    "is_same",
    "list_of",
    "mapping_of",
    "mappings_in",
    "read_serialized",
    "shallowest",
    "without_pickles",
]

_NESTED = frozenset((dict, list))
_NUMBERS = re.compile(r"bool|(u?int|float|longdouble)\d*")


def dotted(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to values by their dotted names, in order; an empty mapping is a value."""
    return dict(flattened(document, prefix))


def shallowest(document: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Flatten the entries nearest to the root, fewest dots first, without walking the others."""
    flat: dict[str, Any] = {}
    level: list[tuple[str, Mapping[str, Any]]] = [("", document)]
    while level and len(flat) < most:
        below: list[tuple[str, Mapping[str, Any]]] = []
        for prefix, part in level:
            for key, value in part.items():
                if isinstance(value, Mapping) and value:
                    below.append((f"{prefix}{key}.", value))
                else:
                    flat[f"{prefix}{key}"] = value
                    if len(flat) == most:
                        return flat
        level = below
    return flat


def entry_at(document: Any, path: str) -> Any:
    """Return the entry at a dotted path, whose keys may contain dots themselves; None if there is none.

    The empty path is the document.
    """
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


def mapping_of(value: Any) -> Mapping[str, Any]:
    """Return an entry that should be a mapping; an empty one for anything else, which a foreign record may hold."""
    return value if isinstance(value, Mapping) else {}


def list_of(value: Any) -> list[Any]:
    """Return an entry that should be a list; an empty one for anything else, which a foreign record may hold."""
    return value if isinstance(value, list) else []


def mappings_in(value: Any) -> list[dict[str, Any]]:
    """Return copies of the mappings in a list; anything else, which a foreign record may hold, is skipped."""
    return [dict(item) for item in list_of(value) if isinstance(item, Mapping)]


@dataclasses.dataclass(frozen=True)
class Changes:
    """The differences between two documents.

    Attributes:
        changed: Old and new value by name.
        added: Values that only the second document has.
        removed: Values that only the first document has.
    """

    changed: dict[str, tuple[Any, Any]]
    added: dict[str, Any]
    removed: dict[str, Any]

    def __bool__(self) -> bool:
        return bool(self.changed or self.added or self.removed)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Changes:
    """Return the differences between two flat documents."""
    return Changes(
        {name: (old[name], new[name]) for name in old if name in new and not is_same(old[name], new[name])},
        {name: new[name] for name in new if name not in old},
        {name: old[name] for name in old if name not in new},
    )


def is_same(first: Any, second: Any) -> bool:
    """Tell whether two values are the same: True is not 1, 1 is 1.0, NaN is NaN, a tuple is its list."""
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(is_same(first[key], second[key]) for key in first)
    if isinstance(first, bool) != isinstance(second, bool):
        return False
    return bool(first == second) or (first != first and second != second)


def without_pickles(value: Any, *, twice: bool = False) -> Any:
    """Replace serialized tuples by lists and serialized NumPy scalars by numbers, at any depth; keys become texts.

    `twice` also reads values that were serialized twice, which drops the names of NumPy's types; earlier versions did
    so with results.
    """
    if isinstance(value, dict):
        plain = read_serialized(value, twice=twice)
        if plain is not value:
            return without_pickles(plain, twice=twice)
        return {
            str(key): without_pickles(item, twice=twice) if type(item) in _NESTED else item
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [without_pickles(item, twice=twice) if type(item) in _NESTED else item for item in value]
    return value


def read_serialized(value: dict[str, Any], *, twice: bool = False) -> Any:
    """Return the list or number that a mapping stands for; the mapping itself if it stands for neither."""
    if "py/tuple" in value and len(value) == 1:
        return value["py/tuple"]
    if "dtype" not in value:
        return value
    # A scalar has `value`; an array without dimensions has a number as `values`.
    number = value.get("value", value.get("values"))
    names_numpy = str(value.get("py/object", "")).startswith("numpy.") and len(value) == 3
    is_number = isinstance(number, int | float) and _NUMBERS.fullmatch(str(value["dtype"])) is not None
    return number if is_number and (names_numpy or (twice and len(value) == 2)) else value
