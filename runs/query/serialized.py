"""Tuples and NumPy scalars that Sacred's serializer (jsonpickle) wrote, read as lists and numbers.

Nothing is decoded: other objects stay as the serializer wrote them.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["read_serialized", "without_pickles"]

_NESTED = frozenset((dict, list))
_NUMBERS = re.compile(r"bool|(u?int|float|longdouble)\d*")


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
