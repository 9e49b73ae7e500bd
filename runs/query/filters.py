"""Filters and questions: MongoDB filter documents or lists of conditions, parsed into one tree that every store reads.

A condition is a triple `("optimizer.lr", "<", 1e-3)` or a text `optimizer.lr<1e-3`; a list means all of them. A
document follows MongoDB, with the operators of `DOCUMENT_OPERATORS` and `$and`, `$or`, `$nor`. See
`sacristan.runs.query` for the names. Every store applies the same rules:

* a missing field equals None, and otherwise meets only `!=`;
* numbers, texts and booleans are never equal to each other; `<` compares values of one kind, and NaN with nothing;
* a list equals the same list, not one of its items; mappings are never compared;
* an integer of more than 34 digits is a text;
* an id made of digits is a number;
* the user `me` is the one of this process (`sacristan.observers.record.identity.user_name`);
* regular expressions are RE2's (`sacristan.runs.query.conditions`);
* times accept any form of ISO 8601, default to UTC and midnight, and are compared to the millisecond.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sacristan.runs.errors import FilterError
from sacristan.runs.query import QUOTED, dotted, entry_at, full_name, id_of, is_same
from sacristan.runs.query.conditions import (
    DOCUMENT_OPERATORS,
    SEARCHED,
    AllOf,
    Condition,
    Filter,
    Not,
    OneOf,
    Words,
    condition,
    is_found,
    names_in,
)

# MongoDB's limit.
MAX_DEPTH = 100

Row = TypeVar("Row")
# Kinds of values with an order, in which they are sorted.
_ORDERED = ("number", "bool", "text")
_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
# A word of a name; one between backticks may hold anything.
_WORD = rf"(?:{QUOTED}|[^\s=<>!~`])+"
_WORDS = re.compile(rf"\s*(?P<name>{_WORD}(?:\s+{_WORD})*?)\s*(?P<operator>==|!=|<=|>=|=|<|>|~)\s*(?P<value>.*)", re.S)
_OPEN_NAME = re.compile(rf"(?:{QUOTED}|[^=<>!~`])*`(?:[^`]|``)*")
# A second condition after the first.
_MORE = re.compile(r"""^[^"'\[({]*(&&|\|\||,)\s*[^\s=<>!~,]+\s*(==|!=|<=|>=|=|<|>|~)""", re.I)
_IN = re.compile(rf"\s*(?P<name>{_WORD})\s+(?P<not>not\s+)?in\s*(?P<values>[\[(].*[\])])\s*", re.S | re.I)
# Where another condition may begin.
_NEXT = rf"\s+(?=(?:{QUOTED}|[^\s=<>!~,\"'`])+(\s*(==|!=|<=|>=|=|<|>|~)|\s+(not\s+)?in\s*[\[(]))"
_OR, _AND = re.compile(rf"\s+or{_NEXT}", re.I), re.compile(rf"\s+and{_NEXT}", re.I)

_NAMED = {"true": True, "false": False, "null": None, "none": None, "nan": float("nan"), "inf": float("inf")}
# Errors of `ast.literal_eval`.
_NO_LITERAL = (ValueError, SyntaxError, MemoryError, RecursionError)


def parse_filter(source: Filter | Mapping[str, Any] | Iterable[Any] | str | None) -> Filter:
    """Return the tree of a filter document, a list of conditions, a text or a tree; None means all runs."""
    try:
        tree = _parse(source)
        is_deep = _depth(tree) > MAX_DEPTH
    except RecursionError:
        is_deep = True
    if is_deep:
        raise FilterError(f"got a filter nested more than {MAX_DEPTH} deep; write it flatter, such as with 'in'")
    return tree


def _depth(tree: Filter) -> int:
    return 0 if isinstance(tree, Condition | Words) else 1 + max(map(_depth, tree.parts), default=0)


def _parse(source: Filter | Mapping[str, Any] | Iterable[Any] | str | None) -> Filter:
    if source is None:
        return AllOf(())
    if isinstance(source, Filter):
        return source
    if isinstance(source, str):
        return parse_words(source)
    if isinstance(source, Mapping):
        return _document(source)
    return AllOf(tuple(map(_item, source)))


def _item(item: Any) -> Filter:
    if isinstance(item, str | Mapping | Filter):
        return _parse(item)
    if isinstance(item, Sequence) and len(item) == 3 and isinstance(item[0], str):
        return condition(*item)
    raise FilterError(f"got the condition {item!r}, expected (name, operator, value) or text such as lr<1e-3")


def _document(document: Mapping[str, Any]) -> Filter:
    parts: list[Filter] = []
    for name, value in document.items():
        if name in ("$and", "$or", "$nor"):
            parts.append(_joined(name, value))
        elif name.startswith("$"):
            raise FilterError(f"got the operator {name}, which is not known; there are $and, $or, $nor")
        elif isinstance(value, Mapping) and any(str(key).startswith("$") for key in value):
            parts += [_operator(name, key, operand, value) for key, operand in value.items() if key != "$options"]
        else:
            parts.append(condition(name, "==", value))
    return parts[0] if len(parts) == 1 else AllOf(tuple(parts))


def _joined(operator: str, documents: Any) -> Filter:
    if isinstance(documents, Mapping | str) or not isinstance(documents, Sequence):
        raise FilterError(f"{operator}: got {documents!r}, expected a list of filter documents")
    parts = tuple(map(_parse, documents))
    return AllOf(parts) if operator == "$and" else OneOf(parts) if operator == "$or" else Not(OneOf(parts))


def _operator(name: str, operator: str, operand: Any, operators: Mapping[str, Any]) -> Filter:
    if operator == "$exists":
        missing = Condition(full_name(name), "==", None)
        return Not(missing) if operand else missing
    if operator == "$nin":
        return Not(condition(name, "in", operand))
    if operator == "$not":
        if not isinstance(operand, Mapping):
            raise FilterError(f"{name}: $not got {operand!r}, expected operators such as {{'$lt': 1}}")
        return Not(_document({name: operand}))
    if operator == "$regex" and operators.get("$options"):
        flags = operators["$options"]
        if not isinstance(flags, str) or set(flags) - set("ims"):
            raise FilterError(f"{name}: got the $options {flags!r}, expected letters among i, m and s")
        return condition(name, "~", f"(?{flags}){operand}")
    if operator not in DOCUMENT_OPERATORS:
        operator_names = ", ".join([*DOCUMENT_OPERATORS, "$nin", "$exists", "$not"])
        raise FilterError(f"{name}: got the operator {operator}, which is not known; there are {operator_names}")
    return condition(name, operator, operand)


def holds(condition: Condition, value: Any) -> bool:
    """Tell whether a condition is true of a field's value, which is None where the run lacks the field."""
    expected = condition.value
    if condition.name == "_id" and condition.operator != "~":
        value = id_of(value)
    if condition.operator == "in":
        return any(is_same(value, item) for item in expected)
    if condition.operator == "==":
        return is_same(value, expected)
    if condition.operator == "~":
        return isinstance(value, str) and is_found(expected, value)
    kind = _kind(value)
    return kind in _ORDERED and kind == _kind(expected) and _COMPARE[condition.operator](value, expected)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else "text" if isinstance(value, str) else type(value).__name__


def texts_to_search(document: Mapping[str, Any], tags: Iterable[str]) -> list[str]:
    """Return the texts that `Words` searches."""
    fields = dotted(config) if isinstance(config := document.get("config"), Mapping) else {}
    values = [*fields.values(), *(entry_at(document, name) for name in SEARCHED)]
    return [*tags, *(value for value in values if isinstance(value, str))]


def matches(tree: Filter, field: Callable[[str], Any]) -> bool:
    """Tell whether a filter without `Words` is true of a run, whose `field` is None for a missing one."""
    assert not isinstance(tree, Words)
    if isinstance(tree, Condition):
        return holds(tree, field(tree.name))
    if isinstance(tree, Not):
        return not matches(tree.part, field)
    return (all if isinstance(tree, AllOf) else any)(matches(part, field) for part in tree.parts)


def in_order(rows: Iterable[Row], value: Callable[[Row], Any], *, descending: bool) -> list[Row]:
    """Return rows in the order of every store: numbers, booleans, texts, then the rest; ties keep their order."""
    kinds: dict[str, list[Row]] = {kind: [] for kind in (*_ORDERED, "")}
    for row in rows:
        key = value(row)
        kind = _kind(key) if key == key else ""
        kinds[kind if kind in kinds else ""].append(row)
    for kind in _ORDERED:
        kinds[kind].sort(key=value, reverse=descending)
    return [row for part in kinds.values() for row in part]


@dataclasses.dataclass(frozen=True)
class Question:
    """A question that a store answers with runs."""

    tree: Filter = dataclasses.field(default_factory=lambda: AllOf(()))
    by: str = "_id"
    descending: bool = False  # Whether the greatest value comes first. Runs without the field come last either way.
    limit: int | None = None  # maximum number of runs; None for all
    offset: int = 0
    columns: tuple[str, ...] = ()  # names, short or full, of the fields to fetch with the runs

    @classmethod
    def of(
        cls,
        filter: Any = None,
        sort: str | None = None,
        limit: int | None = None,
        columns: Sequence[str] = (),
        offset: int = 0,
    ) -> Question:
        """Parse and check a question; `sort` is a field, prefixed with `-` for descending order, None for the id."""
        if limit is not None and not _is_count(limit):
            raise FilterError(f"limit: got {limit!r}, expected a maximum number of runs, or None for all")
        if not _is_count(offset):
            raise FilterError(f"offset: got {offset!r}, expected the number of runs to skip, at least 0")
        by = full_name(sort.removeprefix("-")) if sort else "_id"
        return cls(parse_filter(filter), by, bool(sort and sort.startswith("-")), limit, offset, tuple(columns))

    @functools.cached_property
    def judged(self) -> frozenset[str]:
        """Full names of the fields that decide which runs come, and in what order."""
        return frozenset(names_in(self.tree) | {self.by})

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Full names of all fields: those `judged` and the columns."""
        return self.judged | {full_name(name) for name in self.columns}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def parse_words(text: str) -> Filter:
    """Parse the text form of a filter.

    It is one condition, such as `optimizer.lr<1e-3` or `lr in (0.1, 0.2)`, or several joined by `and` and `or`, of
    which `and` binds closer. Values are Python literals; anything else is a text.
    """
    parts = tuple(map(_all_of, _split(_OR, text)))
    return parts[0] if len(parts) == 1 else OneOf(parts)


def _all_of(text: str) -> Filter:
    parts = tuple(map(_one_condition, _split(_AND, text)))
    return parts[0] if len(parts) == 1 else AllOf(parts)


def _split(between: re.Pattern[str], text: str) -> list[str]:
    parts, start = [], 0
    for match in between.finditer(text):
        if _is_closed(text[start : match.start()]):
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _is_closed(text: str) -> bool:
    """Tell whether a condition may end here: not in a quoted name, nor in quotes or brackets that open its value."""
    if _OPEN_NAME.fullmatch(text):
        return False
    match = _WORDS.fullmatch(text)
    value = match["value"].strip() if match is not None else ""
    if not value or value[0] not in "\"'[({":
        return True
    try:
        ast.literal_eval(value)
    except _NO_LITERAL:
        return value[-1] in "\"'])}" and len(value) > 1
    return True


def _one_condition(text: str) -> Filter:
    match = _IN.fullmatch(text)
    if match is not None:
        values = condition(match["name"], "in", _bracketed(match["values"]))
        return Not(values) if match["not"] else values
    match = _WORDS.fullmatch(text)
    if match is None:
        raise FilterError(
            f"got the condition {text!r}, expected NAME, one of = != < <= > >= ~, and a value; put a name with spaces, "
            "commas or operators between backticks"
        )
    operator = match["operator"]
    if operator != "~" and re.match("[=<>!]", match["value"]):
        raise FilterError(
            f"got the condition {text!r}, expected one of = != < <= > >= ~ between name and value; quote a text that "
            f"begins like this: {match['name']}{match['operator']}'\"...\"'"
        )
    if operator not in ("=", "==", "!=") and not match["value"].strip():
        raise FilterError(f"got the condition {text!r}, expected a value after the {operator}")
    if _MORE.search(match["value"]):
        raise FilterError(
            f"got {text!r}, expected conditions joined by `and` or `or`; quote a text: "
            f"{match['name']}{match['operator']}'\"...\"'"
        )
    return condition(match["name"], operator, match["value"] if operator == "~" else _literal(match["value"]))


def _bracketed(text: str) -> list[Any]:
    """Return the values between brackets, where words need no quotes."""
    try:
        value = ast.literal_eval(f"[{text.strip()[1:-1]}]")
    except _NO_LITERAL:
        return [_literal(word) for word in text.strip()[1:-1].split(",") if word.strip()]
    return list(value)


def _literal(text: str) -> Any:
    text = text.strip()
    if text.lower() in _NAMED:
        return _NAMED[text.lower()]
    try:
        value = ast.literal_eval(text)
    except _NO_LITERAL:
        return text
    return value if value is None or isinstance(value, bool | int | float | str | list | tuple | dict) else text
