"""The nodes of a filter tree; see `sacristan.runs.query.filters` for what they mean."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sacristan.observers.record.identity import USER_VARIABLE, user_name
from sacristan.observers.record.json_text import is_text_only, storable_integer, storable_text
from sacristan.runs.errors import FilterError
from sacristan.runs.query import DURATION, SWEEP, TIMES, USER, full_name, id_of, seconds_of, time_text

# The user of this process, where it is compared with the user of a run.
ME = "me"
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
    """A comparison of one field with one value."""

    name: str
    operator: str  # one of `OPERATORS` except `!=`, which is a `Not`; `~` searches a text for a regular expression
    value: Any  # a JSON value; a list for `in`; for a time, the text that `sacristan.runs.query.time_text` returns


@dataclasses.dataclass(frozen=True)
class AllOf:
    """True where all `parts` are true; without parts, everywhere."""

    parts: tuple[Filter, ...]


@dataclasses.dataclass(frozen=True)
class OneOf:
    """True where at least one of `parts` is true."""

    parts: tuple[Filter, ...]


@dataclasses.dataclass(frozen=True)
class Not:
    """True where `part` is false."""

    part: Filter

    @property
    def parts(self) -> tuple[Filter, ...]:
        """The part, as the other nodes have theirs."""
        return (self.part,)


@dataclasses.dataclass(frozen=True)
class Words:
    """A text search: every word occurs somewhere in the run's texts, ignoring the case of ASCII letters.

    The search covers the texts of the config, the fields `SEARCHED` and the tags, but no lists.

    Attributes:
        text: The words, separated by spaces.
    """

    text: str

    @property
    def words(self) -> tuple[str, ...]:
        """The words, without duplicates."""
        return tuple(dict.fromkeys(storable_text(self.text).split()))


Filter = Condition | AllOf | OneOf | Not | Words
# Fields whose texts `Words` searches, besides those of the config.
SEARCHED = (
    "experiment.name", "display_name", "command", "host.hostname", USER, "note", "result", "meta.comment", SWEEP,
)  # fmt: skip


def signed_leaves(tree: Filter, *, is_negated: bool = False) -> Iterator[tuple[Condition | Words, bool]]:
    """Yield the conditions and searches of a filter, from left to right, each with whether it is negated."""
    if isinstance(tree, Condition | Words):
        yield tree, is_negated
    else:
        for part in tree.parts:
            yield from signed_leaves(part, is_negated=is_negated != isinstance(tree, Not))


def leaves(tree: Filter) -> Iterator[Condition | Words]:
    """Yield the conditions and searches of a filter, from left to right."""
    return (leaf for leaf, _ in signed_leaves(tree))


def names_in(tree: Filter) -> set[str]:
    """Return the full names of the fields in a filter."""
    return {leaf.name for leaf in leaves(tree) if isinstance(leaf, Condition)}


def condition(name: str, operator: str, value: Any) -> Condition | Not:
    """Return a checked condition, with the field's full name and a comparable value; NumPy scalars are numbers."""
    operator = {"=": "==", **DOCUMENT_OPERATORS}.get(operator, operator)
    if operator not in OPERATORS:
        raise FilterError(f"{name}: got the operator {operator!r}, expected one of {' '.join(OPERATORS)}")
    full = full_name(name)
    if operator == "in":
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise FilterError(f"{name} in: got {value!r}, expected a list of values")
        return Condition(full, operator, [_comparable(name, full, item) for item in value])
    if operator == "~":
        return Condition(full, operator, _pattern(name, full, value))
    if operator == "!=":
        return Not(Condition(full, "==", _comparable(name, full, value)))
    if operator != "==":
        value = _ordered(name, operator, value)
    return Condition(full, operator, _comparable(name, full, value))


def _ordered(name: str, operator: str, value: Any) -> int | float | str:
    """Return a value for `<`, `<=`, `>` or `>=`."""
    value = _json_value(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise FilterError(f"{name} {operator}: got {value!r}, expected a number or a text to compare with")
    if isinstance(value, int) and is_text_only(value):
        try:
            return float(value)  # close enough to every number in a store
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value


def _comparable(name: str, full: str, value: Any) -> Any:
    """Return a value in the form in which stores keep it."""
    value = _json_value(name, value)
    if full == "_id":
        return str(value) if isinstance(value, bool) else id_of(value) if isinstance(value, str) else value
    if full == USER and value == ME:
        value = user_name()
        if value is None:
            raise FilterError(f"{name}: got {ME}, but this user has no name; set {USER_VARIABLE}")
    if isinstance(value, str) and full in TIMES:
        if (time := time_text(value)) is None:
            raise FilterError(f"{name}: got {value!r}, expected a time such as 2026-01-31 or 2026-01-31T12:00")
        return time
    if isinstance(value, str) and full == DURATION:
        if (seconds := seconds_of(value)) is None:
            raise FilterError(f"{name}: got {value!r}, expected seconds, or a text such as 90m, 2h15m or 1d12h")
        return seconds
    return _storable_item(value)


def _json_value(name: str, value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, str):
        return storable_text(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_storable_item(_json_value(name, item)) for item in value]
    if isinstance(value, Mapping):
        raise FilterError(f"{name}: got a mapping, which nothing is compared with; ask for its entries: {name}.ENTRY=1")
    raise FilterError(f"{name}: got {value!r}, expected a number, a text, a boolean, None, or a list of them")


def _storable_item(item: Any) -> Any:
    return storable_integer(item) if type(item) is int and is_text_only(item) else item


def _pattern(name: str, full: str, value: Any) -> str:
    if full in TIMES:
        raise FilterError(f"{name} ~: a time is compared with = < <= > >=, such as {name}>=2026-01-31")
    if not isinstance(value, str):
        raise FilterError(f"{name} ~: got {value!r}, which is no regular expression (it is no text)")
    try:
        check_pattern(value)
    except ValueError as error:
        raise FilterError(f"{name} ~: got {value!r}, which is no regular expression of RE2 ({error})") from error
    return value


def check_pattern(pattern: str) -> None:
    """Check that a regular expression in RE2's syntax compiles, else raise ValueError with RE2's reason.

    RE2 searches in time linear in the text, whatever the pattern. It has no back-references and no lookaround;
    otherwise patterns are written as in Python. `$` matches only at the end of the text. The last 64 expressions stay
    compiled.
    """
    _searcher(pattern)


def is_found(pattern: str, text: str) -> bool:
    """Tell whether a regular expression that `check_pattern` accepts matches anywhere in a text."""
    return _searcher(pattern)(storable_text(text).encode()) is not None


@functools.lru_cache(maxsize=64)
def _searcher(pattern: str) -> Callable[[bytes], object]:
    import re2  # only filters with `~` load it

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(storable_text(pattern).encode(), options).search
    except re2.error as error:
        reason = error.args[0] if error.args else error
        raise ValueError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from error
