"""Values of fields as SQLite holds them: a kind, and a value that SQLite can compare."""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Callable
from typing import Any

from sacristan.observers.record.json_text import is_large, is_text_only, parse_json, storable_integer, storable_text

__all__ = [
    "BIG",
    "BOOL",
    "HUGE",
    "JSON",
    "LONG",
    "MAX_LIST",
    "NAN",
    "NOT_HELD",
    "NULL",
    "NUMBER",
    "TEXT",
    "decode",
    "encode",
    "residual",
]

# Kinds of values, in the order of a sorted column. SQLite has no NaN, no integers beyond 64 bits (BIG) and no booleans,
# and keeps a list as text (JSON). LONG is a list that is too long for the index, or that equals lists in another
# spelling, as [1.0] equals [1]. HUGE is an integer that filters take for a text.
NUMBER, BIG, BOOL, TEXT, JSON, LONG, NULL, NAN, HUGE = range(9)
# Stands for a LONG value, which only the run's own file has.
NOT_HELD = object()
# Characters of a list that the index keeps.
MAX_LIST = 4096


def encode(value: Any) -> tuple[int, Any]:
    """Return kind and value as SQLite holds them.

    The value is the same for equal values of that kind; of a LONG list it is a digest.
    """
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
    for plain in (float, int, str):
        if isinstance(value, plain):
            return encode(plain(value))
    return _encode_list(value)


def _encode_float(value: float) -> tuple[int, Any]:
    return (NUMBER, value) if value == value else (NAN, None)


def _encode_int(value: int) -> tuple[int, Any]:
    if not is_large(value):
        return NUMBER, value
    return (HUGE if is_text_only(value) else BIG), storable_integer(value)


_ENCODERS: dict[type, Callable[[Any], tuple[int, Any]]] = {
    float: _encode_float,
    str: lambda value: (TEXT, value if value.isascii() else storable_text(value)),
    int: _encode_int,
    bool: lambda value: (BOOL, int(value)),
    type(None): lambda _: (NULL, None),
}


def _encode_list(value: Any) -> tuple[int, Any]:
    try:
        canonical = _canonical(value)
        text = _dumped(canonical)
        is_canonical = canonical is value or _dumped(value) == text
    except RecursionError:
        return LONG, '"nested too deeply"'
    if len(text) > MAX_LIST:
        return LONG, hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return (JSON if is_canonical else LONG), text


_dumped = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _canonical(value: Any) -> Any:
    """Return a list in the one form that all equal lists share: 1.0 is 1."""
    if isinstance(value, list):
        items = [_canonical(item) for item in value]
        return value if all(map(operator.is_, items, value)) else items
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, str):
        return storable_text(value)
    return _canonical_number(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _canonical_number(value: float) -> Any:
    if isinstance(value, float):
        if not value.is_integer():
            return value
        value = int(value)
    return storable_integer(value) if is_text_only(value) else value


def decode(kind: int, value: Any) -> Any:
    """Return the value that `encode` received; `NOT_HELD` for a LONG one."""
    if kind in (NUMBER, TEXT, NULL):
        return value
    if kind == JSON:
        return parse_json(value)
    if kind == NAN:
        return math.nan
    if kind == BOOL:
        return bool(value)
    return int(value, 0) if kind in (BIG, HUGE) else NOT_HELD


def residual(value: int | str) -> int:
    """Return the part of an integer, or its decimal text, that the nearest float lacks: both together identify it."""
    number = int(value)
    return number - int(float(number))
