"""Readers of a spec's fields. Each failure is one sentence: the key, what it got and what it expected.

A reader takes the path of a value, for messages, and the value; it returns the value checked. `read_fields` reads a
whole mapping by a table of readers.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.errors import SweepError

Reader = Callable[[str, Any], Any]


def read_fields(
    where: str,
    document: Mapping[str, Any],
    readers: Mapping[str, Reader],
    owner: str,
    required: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Read each value of a mapping with the reader of its key.

    Messages call the mapping's path `where` (empty for the whole spec) and its object `owner`, such as `a sweep`;
    `required` holds the end of the message for each key that must not be missing. No defaults are filled in.
    """
    check_keys(where, document, readers, owner)
    for key, hint in (required or {}).items():
        if key not in document:
            raise SweepError(f"{_path(where, key)}: is missing{hint}")
    return {key: readers[key](_path(where, key), value) for key, value in document.items()}


def check_keys(where: str, document: Mapping[str, Any], known: Collection[str], owner: str) -> None:
    """Reject unknown keys, and name the nearest known one, or all known ones if none is near."""
    for key in document:
        if key not in known:
            hint = word_suggestion(key, known)
            raise SweepError(f"{_path(where, key)}: is no key of {owner}; {hint}")


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


# ---------------------------------------------------------------------- readers


def anything(where: str, value: Any) -> Any:
    """Accept any value and return it unchanged, for keys that need no check or are checked later with other keys."""
    return value


def flag(where: str, value: Any) -> bool:
    """Return a boolean; 0, 1 and the texts `true` and `false` are rejected, not converted."""
    if not isinstance(value, bool):
        raise SweepError(f"{where}: got {shown(value)}, expected true or false")
    return value


def mapping(example: str) -> Reader:
    """Return a reader of mappings that are not empty; messages show the `example`, written in YAML."""

    def read(where: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping) or not value:
            raise SweepError(f"{where}: got {shown(value)}, expected a mapping such as {example}")
        return value

    return read


def items(example: str, reader: Reader = anything) -> Reader:
    """Return a reader of lists that are not empty; items have paths such as `metrics[0]`, messages show `example`."""

    def read(where: str, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise SweepError(f"{where}: got {shown(value)}, expected a list such as {example}")
        return [reader(f"{where}[{position}]", item) for position, item in enumerate(value)]

    return read


def text(expected: str = "text") -> Reader:
    """Return a reader of texts that are not blank, which messages call `expected`, such as `the name of a metric`."""

    def read(where: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise SweepError(f"{where}: got {shown(value)}, expected {expected}")
        return value

    return read


def choice(*choices: str) -> Reader:
    """Return a reader of one of several words, case-sensitive; messages list all of them and name the nearest one."""

    def read(where: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            hint = word_suggestion(str(value), choices, "")
            raise SweepError(f"{where}: got {shown(value)}, expected {listing(choices)}{hint and f'; {hint}'}")
        return value

    return read


def number(*, above: float = -math.inf, least: float = -math.inf, most: float = math.inf) -> Reader:
    """Return a reader of finite numbers > `above`, >= `least` and <= `most`; other types are rejected."""
    if most < math.inf:
        limits = f" from {least:g} to {most:g}"
    else:
        limits = f" above {above:g}" if above > -math.inf else f" of at least {least:g}" if least > -math.inf else ""

    def read(where: str, value: Any) -> int | float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_number = is_number and abs(value) <= sys.float_info.max  # of an integer as well
        if not is_number or value <= above or not least <= value <= most:
            raise SweepError(f"{where}: got {shown(value)}, expected a number{limits}")
        return value

    return read


def integer(least: int) -> Reader:
    """Return a reader of integers >= `least`; 3.0, booleans and texts are rejected, not converted."""

    def read(where: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SweepError(f"{where}: got {shown(value)}, expected an integer of at least {least}")
        return value

    return read


# ---------------------------------------------------------------------- values


def json_value(where: str, value: Any) -> Any:
    """Copy a value as JSON holds it, with Python's numbers; what JSON lacks, such as nan, raises SweepError."""
    if isinstance(value, Mapping):
        return {_json_key(where, key): json_value(_path(where, key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(f"{where}[{position}]", item) for position, item in enumerate(value)]
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and math.isnan(value):
        raise SweepError(f"{where}: got nan, expected a number that equals itself; None stands for nothing")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise SweepError(f"{where}: got {value} ({type(value).__name__}), expected a number or text; quote it for text")


def _json_key(where: str, key: Any) -> str:
    if not isinstance(key, str):
        place = f"{where}: " if where else ""
        raise SweepError(f"{place}got the key {key!r} ({type(key).__name__}), expected text; quote it")
    return str(key)


def identity(value: Any) -> str:
    """Return the same text for equal values of a parameter: 1 equals 1.0, as in wandb's grids, but not True."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def shown(value: Any) -> str:
    """Return the `repr` of a value for a message, cut off after 60 characters."""
    representation = repr(value)
    return representation if len(representation) <= 60 else f"{representation[:57]}..."


def listing(words: Iterable[str]) -> str:
    """Join words for a message, with commas and `or` before the last: `a, b or c`; at least one word is needed."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
