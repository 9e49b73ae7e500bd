"""Filters of runs: a MongoDB filter document, or a list of conditions, as one tree that every store reads.

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

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from runs.errors import FilterError
from runs.query.conditions import (
    DOCUMENT_OPERATORS,
    SEARCHED,
    AllOf,
    Condition,
    Filter,
    Not,
    OneOf,
    Words,
    condition,
)
from runs.query.filter_texts import parse_words
from runs.query.flattening import dotted, entry_at
from runs.query.names import full_name, id_of
from runs.query.patterns import is_found

__all__ = [
    "SEARCHED",
    "AllOf",
    "Condition",
    "Filter",
    "Not",
    "OneOf",
    "Words",
    "condition",
    "holds",
    "in_order",
    "matches",
    "names_in",
    "num_conditions",
    "parse_filter",
    "parse_words",
    "texts_to_search",
]

# As deep as MongoDB lets a filter be nested.
MAX_DEPTH = 100

Row = TypeVar("Row")


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
