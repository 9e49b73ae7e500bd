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

from runs.errors import SweepError
from runs.query.texts import suggestion

__all__ = [
    "Reader",
    "anything",
    "check_keys",
    "choice",
    "flag",
    "identity",
    "integer",
    "items",
    "listing",
    "mapping",
    "number",
    "plain",
    "read_fields",
    "shown",
    "text",
]

Reader = Callable[[str, Any], Any]


def read_fields(
    where: str,
    document: Mapping[str, Any],
    readers: Mapping[str, Reader],
    owner: str,
    required: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Read each value of a mapping with the reader of its key.

    Args:
        where: Path of the mapping, for messages; empty for the whole spec.
        document: The mapping.
        readers: The reader of each key that may be there.
        owner: The object these keys belong to, for messages, such as `a sweep`.
        required: The keys that must be there, each with the end of the message for when it is missing.

    Returns:
        The values that the readers return, by the same keys, without defaults.

    Raises:
        SweepError: If a key is unknown or missing, or a reader rejects its value.
    """
    check_keys(where, document, readers, owner)
    for key, hint in (required or {}).items():
        if key not in document:
            raise SweepError(f"{_path(where, key)}: is missing{hint}")
    return {key: readers[key](_path(where, key), value) for key, value in document.items()}


def check_keys(where: str, document: Mapping[str, Any], known: Collection[str], owner: str) -> None:
    """Reject unknown keys, and name the nearest known one; see `read_fields` for the arguments.

    Raises:
        SweepError: If `document` has a key that is not in `known`; the message lists `known` if no key is near.
    """
    for key in document:
        if key not in known:
            hint = suggestion(key, known, f"there are: {', '.join(known)}")
            raise SweepError(f"{_path(where, key)}: is no key of {owner}; {hint}")


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


# ---------------------------------------------------------------------- readers


def anything(where: str, value: Any) -> Any:
    """Accept any value and return it unchanged, for keys that need no check or are checked later with other keys."""
    return value


def flag(where: str, value: Any) -> bool:
    """Return a boolean.

    Raises:
        SweepError: If the value is anything else; 0, 1 and the texts `true` and `false` are rejected, not converted.
    """
    if not isinstance(value, bool):
        raise SweepError(f"{where}: got {shown(value)}, expected true or false")
    return value


def mapping(example: str) -> Reader:
    """Return a reader of mappings that are not empty.

    Args:
        example: A valid mapping as one would write it in YAML, which the message shows.
    """

    def read(where: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping) or not value:
            raise SweepError(f"{where}: got {shown(value)}, expected a mapping such as {example}")
        return value

    return read


def items(example: str, reader: Reader = anything) -> Reader:
    """Return a reader of lists that are not empty.

    Args:
        example: A valid list as one would write it in YAML, which the message shows.
        reader: Reads each item, whose path ends in its position: `metrics[0]`.
    """

    def read(where: str, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise SweepError(f"{where}: got {shown(value)}, expected a list such as {example}")
        return [reader(f"{where}[{position}]", item) for position, item in enumerate(value)]

    return read


def text(expected: str = "text") -> Reader:
    """Return a reader of texts that are not empty or blank.

    Args:
        expected: The words for such a text in the message, such as `the name of a metric`.
    """

    def read(where: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise SweepError(f"{where}: got {shown(value)}, expected {expected}")
        return value

    return read


def choice(*choices: str) -> Reader:
    """Return a reader of one of several words; the message lists all of them and names the nearest one.

    Args:
        *choices: The words, in the order in which the message lists them; case matters.
    """

    def read(where: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            hint = suggestion(str(value), choices, "")
            raise SweepError(f"{where}: got {shown(value)}, expected {listing(choices)}{hint and f'; {hint}'}")
        return value

    return read


def number(*, above: float = -math.inf, least: float = -math.inf, most: float = math.inf) -> Reader:
    """Return a reader of finite numbers; booleans and texts such as `1e-3` are rejected.

    Args:
        above: The number must be greater than this.
        least: The number must not be less than this.
        most: The number must not be greater than this; needs `least`.
    """
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
    """Return a reader of integers; 3.0, booleans and texts are rejected, not converted.

    Args:
        least: The smallest integer accepted.
    """

    def read(where: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SweepError(f"{where}: got {shown(value)}, expected an integer of at least {least}")
        return value

    return read


# ---------------------------------------------------------------------- values


def plain(where: str, value: Any) -> Any:
    """Copy a value with nothing in it but what JSON holds: tuples become lists, numbers of numpy those of Python.

    Args:
        where: Path of the value, for messages; empty for the whole spec.
        value: Mappings, lists and scalars, nested to any depth.

    Raises:
        SweepError: If there is anything else in it, such as a date of YAML or nan, or a key that is not text.
    """
    if isinstance(value, Mapping):
        return {_plain_key(where, key): plain(_path(where, key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(f"{where}[{position}]", item) for position, item in enumerate(value)]
    return _plain_scalar(where, value.item() if hasattr(value, "item") else value)


def _plain_key(where: str, key: Any) -> str:
    if not isinstance(key, str):
        place = f"{where}: " if where else ""
        raise SweepError(f"{place}got the key {key!r} ({type(key).__name__}), expected text; quote it")
    return str(key)


def _plain_scalar(where: str, value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        raise SweepError(f"{where}: got nan, expected a number that equals itself; None stands for nothing")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise SweepError(f"{where}: got {value} ({type(value).__name__}), expected a number or text; quote it for text")


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
