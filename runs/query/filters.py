"""What runs are asked for: a MongoDB filter document, or a list of conditions, as one tree that every store reads.

A condition is a triple `("optimizer.lr", "<", 1e-3)` or a text `optimizer.lr<1e-3`; a list means all of them. A
document is MongoDB's, with the operators of `DOCUMENT_OPERATORS` and `$and`, `$or`, `$nor`. Names are those of
`runs.query.names`. On both stores alike:

* a field that a run does not have is equal to None, and meets `!=` only;
* numbers, texts and booleans are never equal to each other; `<` compares what is of one kind, and NaN with nothing;
* a list is equal to the same list, not to one of its items; with a mapping nothing is compared;
* an integer of more than 34 digits is a text;
* an id of digits is a number;
* a regular expression is one of RE2 (`runs.query.patterns`);
* a time may be written in any form of ISO 8601; without a zone it is UTC, without a time of day midnight. Times are
  compared to the millisecond.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from observers.record.storable import is_text_only, storable_integer, storable_text
from runs.errors import FilterError
from runs.query.flattening import dotted, entry_at
from runs.query.names import SWEEP, TIMES, full_name, id_of
from runs.query.patterns import check_pattern, is_found
from runs.query.times import time_text

__all__ = [
    "AllOf",
    "Condition",
    "Filter",
    "Not",
    "OneOf",
    "Words",
    "holds",
    "in_order",
    "matches",
    "names_in",
    "num_conditions",
    "parse_filter",
    "parse_words",
    "texts_to_search",
]

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
# As deep as MongoDB lets a filter be nested.
MAX_DEPTH = 100
_WORDS = re.compile(
    r"\s*(?P<name>[^\s=<>!~]+(?:\s+[^\s=<>!~]+)*?)\s*(?P<operator>==|!=|<=|>=|=|<|>|~)\s*(?P<value>.*)", re.S
)
# A second condition behind the first.
_MORE = re.compile(r"""^[^"'\[({]*(\sand\s|&&|\|\||,)\s*[^\s=<>!~,]+\s*(==|!=|<=|>=|=|<|>|~)""", re.I)
_IN = re.compile(r"\s*(?P<name>[^\s=<>!~]+)\s+(?P<not>not\s+)?in\s*(?P<values>[\[(].*[\])])\s*", re.S | re.I)
# Where another condition may begin.
_OR = re.compile(r"\s+or\s+(?=[^\s=<>!~,\"']+(\s*(==|!=|<=|>=|=|<|>|~)|\s+(not\s+)?in\s*[\[(]))", re.I)


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
    """What `part` is not true of."""

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


Row = TypeVar("Row")
Filter = Condition | AllOf | OneOf | Not | Words
# Fields whose texts `Words` looks at, beside those of the config.
SEARCHED = ("experiment.name", "command", "host.hostname", "note", "result", "meta.comment", SWEEP)


def parse_filter(given: Filter | Mapping[str, Any] | Iterable[Any] | str | None) -> Filter:
    """Return the tree of a filter.

    Args:
        given: A filter document, a list of conditions, one condition as text, or None for everything.

    Raises:
        FilterError: If it makes no sense.
    """
    try:
        tree = _parse(given)
        deep = _depth(tree) > MAX_DEPTH
    except RecursionError:
        deep = True
    if deep:
        raise FilterError(f"got a filter nested more than {MAX_DEPTH} deep; write it flatter, such as with 'in'")
    return tree


def _depth(tree: Filter) -> int:
    if isinstance(tree, Condition | Words):
        return 0
    return 1 + max(map(_depth, (tree.part,) if isinstance(tree, Not) else tree.parts), default=0)


def _parse(given: Filter | Mapping[str, Any] | Iterable[Any] | str | None) -> Filter:
    if given is None:
        return AllOf(())
    if isinstance(given, Filter):
        return given
    if isinstance(given, str):
        return parse_words(given)
    if isinstance(given, Mapping):
        return _document(given)
    parts = []
    for item in given:
        if isinstance(item, str | Mapping | Filter):
            parts.append(_parse(item))
        elif isinstance(item, Sequence) and len(item) == 3 and isinstance(item[0], str):
            parts.append(condition(*item))
        else:
            raise FilterError(f"got the condition {item!r}, expected (name, operator, value) or text such as lr<1e-3")
    return AllOf(tuple(parts))


def parse_words(text: str) -> Filter:
    """Return the filter in a text such as `optimizer.lr<1e-3`, `model.name~^re`, `lr in (0.1, 0.2)` or `lr=1 or lr=2`.

    Values are read as Python's literals are; what is none of them is text.

    Raises:
        FilterError: If it is no condition, nor several with `or` between.
    """
    parts, start = [], 0
    for match in _OR.finditer(text):
        if _is_closed(text[start : match.start()]):
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    found = tuple(map(_one_condition, parts))
    return found[0] if len(found) == 1 else OneOf(found)


def _is_closed(text: str) -> bool:
    """Tell whether a condition may end here: not within the quotes or brackets that its value begins with."""
    match = _WORDS.fullmatch(text)
    value = match["value"].strip() if match is not None else ""
    if not value or value[0] not in "\"'[({":
        return True
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value[-1] in "\"'])}" and len(value) > 1
    return True


def _one_condition(text: str) -> Filter:
    match = _IN.fullmatch(text)
    if match is not None:
        values = condition(match["name"], "in", _listed(match["values"]))
        return Not(values) if match["not"] else values
    match = _WORDS.fullmatch(text)
    if match is None:
        raise FilterError(f"got the condition {text!r}, expected NAME, one of = != < <= > >= ~, and a value")
    operator = {"=": "=="}.get(match["operator"], match["operator"])
    if operator != "~" and re.match("[=<>!]", match["value"]):
        raise FilterError(
            f"got the condition {text!r}, expected one of = != < <= > >= ~ between name and value; a text that begins "
            f"so is put in quotes: {match['name']}{match['operator']}'\"...\"'"
        )
    if _MORE.search(match["value"]):
        raise FilterError(
            f"got {text!r}, expected one condition; give each of them by itself, or put a text in quotes: "
            f"{match['name']}{match['operator']}'\"...\"'"
        )
    return condition(match["name"], operator, match["value"] if operator == "~" else _literal(match["value"]))


def _listed(text: str) -> list[Any]:
    """Return the values between brackets; words in there need no quotes."""
    try:
        value = ast.literal_eval(f"[{text.strip()[1:-1]}]")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return [_literal(word) for word in text.strip()[1:-1].split(",") if word.strip()]
    return list(value)


def _literal(text: str) -> Any:
    named = {"true": True, "false": False, "null": None, "none": None, "nan": float("nan"), "inf": float("inf")}
    if text.strip().lower() in named:
        return named[text.strip().lower()]
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text.strip()
    return value if value is None or isinstance(value, bool | int | float | str | list | tuple | dict) else text.strip()


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


def _document(document: Mapping[str, Any]) -> Filter:
    parts: list[Filter] = []
    for name, value in document.items():
        if name in ("$and", "$or", "$nor"):
            if isinstance(value, Mapping | str) or not isinstance(value, Sequence):
                raise FilterError(f"{name}: got {value!r}, expected a list of filter documents")
            found = tuple(map(_parse, value))
            parts.append(AllOf(found) if name == "$and" else OneOf(found) if name == "$or" else Not(OneOf(found)))
        elif name.startswith("$"):
            raise FilterError(f"got the operator {name}, which is not known; there are $and, $or, $nor")
        elif isinstance(value, Mapping) and any(str(key).startswith("$") for key in value):
            parts += [_operator(name, key, operand, value) for key, operand in value.items() if key != "$options"]
        else:
            parts.append(condition(name, "==", value))
    return parts[0] if len(parts) == 1 else AllOf(tuple(parts))


def _operator(name: str, operator: str, operand: Any, whole: Mapping[str, Any]) -> Filter:
    if operator == "$exists":
        missing = Condition(full_name(name), "==", None)
        return Not(missing) if operand else missing
    if operator == "$nin":
        return Not(condition(name, "in", operand))
    if operator == "$not":
        if not isinstance(operand, Mapping):
            raise FilterError(f"{name}: $not got {operand!r}, expected operators such as {{'$lt': 1}}")
        return Not(_document({name: operand}))
    if operator == "$regex" and whole.get("$options"):
        flags = whole["$options"]
        if not isinstance(flags, str) or set(flags) - set("ims"):
            raise FilterError(f"{name}: got the $options {flags!r}, expected letters among i, m and s")
        return condition(name, "~", f"(?{flags}){operand}")
    if operator not in DOCUMENT_OPERATORS:
        known = ", ".join([*DOCUMENT_OPERATORS, "$nin", "$exists", "$not"])
        raise FilterError(f"{name}: got the operator {operator}, which is not known; there are {known}")
    return condition(name, operator, operand)


def num_conditions(tree: Filter) -> int:
    """Return how many conditions a filter has."""
    if isinstance(tree, Condition):
        return 1
    if isinstance(tree, Words):
        return len(tree.words)
    return sum(map(num_conditions, (tree.part,) if isinstance(tree, Not) else tree.parts))


def names_in(tree: Filter, *, with_value: bool = False) -> set[str]:
    """Return the full names that a filter asks for; `with_value` only those that it compares with a value."""
    if isinstance(tree, Words):
        return set()
    if isinstance(tree, Condition):
        return set() if with_value and tree.value is None else {tree.name}
    parts = (tree.part,) if isinstance(tree, Not) else tree.parts
    return {name for part in parts for name in names_in(part, with_value=with_value)}


def holds(condition: Condition, value: Any) -> bool:
    """Tell whether a condition is true of a value, None if the run has none."""
    wanted = condition.value
    if condition.name == "_id" and condition.operator != "~":
        value = id_of(value)
    if condition.operator == "in":
        return any(_equal(value, item) for item in wanted)
    if condition.operator in ("==", "!="):
        return _equal(value, wanted) == (condition.operator == "==")
    if condition.operator == "~":
        return isinstance(value, str) and is_found(wanted, value)
    if _kind(value) != _kind(wanted) or _kind(value) not in ("number", "text", "bool"):
        return False
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[condition.operator]
    return compare(value, wanted)


def _equal(value: Any, wanted: Any) -> bool:
    if _kind(value) != _kind(wanted):
        return False
    if isinstance(value, list):
        return len(value) == len(wanted) and all(map(_equal, value, wanted))
    return value == wanted or (value != value and wanted != wanted)  # NaN


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else "text" if isinstance(value, str) else type(value).__name__


def texts_to_search(document: Mapping[str, Any], tags: Iterable[str]) -> list[str]:
    """Return the texts of a run's document, with its config, that `Words` looks at."""
    fields = dotted(config) if isinstance(config := document.get("config"), Mapping) else {}
    values = [*fields.values(), *(entry_at(document, name) for name in SEARCHED)]
    return [*tags, *(value for value in values if isinstance(value, str))]


def matches(tree: Filter, field: Callable[[str], Any]) -> bool:
    """Tell whether a filter without `Words` is true of a run, whose fields `field` returns by their full names."""
    assert not isinstance(tree, Words)
    if isinstance(tree, Condition):
        return holds(tree, field(tree.name))
    if isinstance(tree, Not):
        return not matches(tree.part, field)
    return (all if isinstance(tree, AllOf) else any)(matches(part, field) for part in tree.parts)


def in_order(rows: Iterable[Row], value: Callable[[Row], Any], *, descending: bool) -> list[Row]:
    """Return rows sorted as every store sorts: numbers, booleans, texts, then the rest as they came."""
    kinds: dict[str, list[Row]] = {"number": [], "bool": [], "text": [], "": []}
    for row in rows:
        found = value(row)
        kind = _kind(found) if found == found else ""
        kinds[kind if kind in kinds else ""].append(row)
    for kind in ("number", "bool", "text"):
        kinds[kind].sort(key=value, reverse=descending)
    return [row for part in kinds.values() for row in part]
