"""The tree of a filter: conditions, and what joins them. `runs.query.filters` says what they mean."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterable, Mapping
from typing import Any

from observers.record.storable import is_text_only, storable_integer, storable_text
from runs.errors import FilterError
from runs.query.names import SWEEP, TIMES, full_name, id_of
from runs.query.patterns import check_pattern
from runs.query.times import time_text

__all__ = ["DOCUMENT_OPERATORS", "SEARCHED", "AllOf", "Condition", "Filter", "Not", "OneOf", "Words", "condition"]

OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "in", "~")
DOCUMENT_OPERATORS = {
    "$eq": "==",
    "$ne": "!=",
    "$lt": "<",
    "$lte": "<=",
    "$gt": ">",
    "$gte": ">=",
    "$in": "in",
    "$regex": "~",
}


@dataclasses.dataclass(frozen=True)
class Condition:
    """One field against one value.

    Attributes:
        name: The field's full name.
        operator: One of `OPERATORS`; `~` finds a regular expression in a text.
        value: What JSON holds; a list for `in`; for a time a text as `runs.query.times.time_text` returns it.
    """

    name: str
    operator: str
    value: Any


@dataclasses.dataclass(frozen=True)
class AllOf:
    """All of `parts`; everything, if there are none."""

    parts: tuple[Filter, ...]


@dataclasses.dataclass(frozen=True)
class OneOf:
    """At least one of `parts`."""

    parts: tuple[Filter, ...]


@dataclasses.dataclass(frozen=True)
class Not:
    """Negation of `part`."""

    part: Filter


@dataclasses.dataclass(frozen=True)
class Words:
    """Words that a run's texts contain, each of them somewhere, in capitals or not (of ASCII).

    They are looked for in the texts of the config, the fields `SEARCHED` and the tags; not in lists.

    Attributes:
        text: The words, with spaces between.
    """

    text: str

    @property
    def words(self) -> tuple[str, ...]:
        """The words, each once."""
        return tuple(dict.fromkeys(storable_text(self.text).split()))


Filter = Condition | AllOf | OneOf | Not | Words
# Fields whose texts `Words` looks at, beside those of the config.
SEARCHED = ("experiment.name", "command", "host.hostname", "note", "result", "meta.comment", SWEEP)


def condition(name: str, operator: str, value: Any) -> Condition:
    """Return a condition with its full name and a value that can be compared.

    Raises:
        FilterError: If the operator is unknown, or the value does not fit it.
    """
    operator = {"=": "==", **DOCUMENT_OPERATORS}.get(operator, operator)
    if operator not in OPERATORS:
        raise FilterError(f"{name}: got the operator {operator!r}, expected one of {' '.join(OPERATORS)}")
    full = full_name(name)
    if operator == "in":
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise FilterError(f"{name} in: got {value!r}, expected a list of values")
        return Condition(full, operator, [_comparable(name, full, item) for item in value])
    if operator == "~" and full in TIMES:
        raise FilterError(f"{name} ~: a time is compared with = < <= > >=, such as {name}>=2026-01-31")
    if operator == "~":
        return Condition(full, operator, _pattern(name, value))
    if operator in ("==", "!="):
        return Condition(full, operator, _comparable(name, full, value))
    value = _plain(name, value)
    if not isinstance(value, int | float | str):
        raise FilterError(f"{name} {operator}: got {value!r}, expected a number or a text to compare with")
    if isinstance(value, int) and not isinstance(value, bool) and is_text_only(value):
        value = _as_float(value)  # which is near enough to what stores hold as numbers
    return Condition(full, operator, _comparable(name, full, value))


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _comparable(name: str, full: str, value: Any) -> Any:
    """Return a value as it is compared; times and ids in the form that stores keep."""
    value = _plain(name, value)
    if full == "_id":
        return str(value) if isinstance(value, bool) else id_of(value) if isinstance(value, str) else value
    if isinstance(value, int) and not isinstance(value, bool) and is_text_only(value):
        return storable_integer(value)
    if full not in TIMES or not isinstance(value, str):
        return value
    time = time_text(value)
    if time is None:
        raise FilterError(f"{name}: got {value!r}, expected a time such as 2026-01-31 or 2026-01-31T12:00")
    return time


def _plain(name: str, value: Any) -> Any:
    """Return a value as JSON holds it."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, str):
        return storable_text(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [
            storable_integer(item) if type(item) is int and is_text_only(item) else item
            for item in (_plain(name, item) for item in value)
        ]
    if isinstance(value, Mapping):
        raise FilterError(f"{name}: got a mapping, which nothing is compared with; ask for its entries: {name}.ENTRY=1")
    raise FilterError(f"{name}: got {value!r}, expected a number, a text, a boolean, None, or a list of them")


def _pattern(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise FilterError(f"{name} ~: got {value!r}, which is no regular expression (it is no text)")
    try:
        check_pattern(value)
    except ValueError as error:
        raise FilterError(f"{name} ~: got {value!r}, which is no regular expression of RE2 ({error})") from error
    return value
