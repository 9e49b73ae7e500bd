"""Filters and sorts as MongoDB queries that give the same answers as the index over folders."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import bson
import pymongo

from sacristan.observers.mongo.documents import stored_key
from sacristan.observers.record.json_text import is_large
from sacristan.runs.query.filters import Condition, Filter, Not, OneOf, Question, Words
from sacristan.runs.query.names import TIMES, id_of
from sacristan.runs.query.times import DURATION

__all__ = ["OMNIBOARD_NOTES", "OMNIBOARD_TAGS", "exists", "keys_of", "query_of", "sort_stages", "stored_path"]

Query = dict[str, Any]
# Where Omniboard keeps tags, a list, and the note on a run, a text.
OMNIBOARD_TAGS, OMNIBOARD_NOTES = "omniboard.tags", "omniboard.notes"
_OPERATORS = {"==": "$eq", "<": "$lt", "<=": "$lte", ">": "$gt", ">=": "$gte"}
_NOTHING: Query = {"_id": {"$in": []}}
_NO_LIST: Query = {"$not": {"$type": "array"}}


def _is_time(expression: str) -> Query:
    return {"$eq": [{"$type": expression}, "date"]}


# `sacristan.runs.query.times.duration_s` as an expression, in seconds; null where that is None. To filter 20,000
# documents by reading them takes eighty times as long.
_DURATION_S: Query = {
    "$let": {
        "vars": {
            "start": {"$ifNull": ["$start_time", "$queue_time"]},
            "stop": {"$cond": [_is_time("$stop_time"), "$stop_time", "$heartbeat"]},
        },
        "in": {
            "$cond": [
                {"$and": [_is_time("$$start"), _is_time("$$stop"), {"$gte": ["$$stop", "$$start"]}]},
                {"$divide": [{"$subtract": ["$$stop", "$$start"]}, 1000]},
                None,
            ]
        },
    }
}


def stored_path(name: str) -> str:
    """Return the path of a field in a run's document; the name of a metric in it has no dots."""
    if name.startswith("summary."):
        metric, _, statistic = name.removeprefix("summary.").rpartition(".")
        return f"summary.{stored_key(metric)}.{statistic}" if metric else name
    return name


def query_of(tree: Filter) -> Query:
    """Return a filter as a MongoDB query; `ComputedConditions` has replaced what no query can evaluate."""
    if isinstance(tree, Condition):
        return _condition(tree)
    assert not isinstance(tree, Words)
    parts = [query_of(part) for part in tree.parts]
    if isinstance(tree, Not):
        return {"$nor": parts}
    if isinstance(tree, OneOf):
        return {"$or": parts} if parts else _NOTHING
    return _all_of([part for part in parts if part])


def _all_of(parts: list[Query]) -> Query:
    return parts[0] if len(parts) == 1 else {"$and": parts} if parts else {}


def _condition(condition: Condition) -> Query:
    name, operator, value = condition.name, condition.operator, condition.value
    if name == "_id":
        return _on_id(operator, value)
    if operator == "in":
        return query_of(OneOf(tuple(Condition(name, "==", item) for item in value)))
    if name == DURATION:
        return _on_duration(operator, value)
    if _is_nan(value) and operator != "==":
        return _NOTHING
    if name in TIMES and isinstance(value, str):
        value = datetime.fromisoformat(value)
    return _on_path(stored_path(name), operator, value)


def _on_path(path: str, operator: str, value: Any) -> Query:
    if path.startswith("tags.") and operator == "==" and (value is True or value is None):
        return _on_tag(path, has_tag=value is True)
    return _on_list(path, value) if isinstance(value, list) else _on_scalar(path, operator, value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _on_tag(path: str, *, has_tag: bool) -> Query:
    in_omniboard = {OMNIBOARD_TAGS: path.removeprefix("tags.")}
    if has_tag:
        return {"$or": [{path: True}, in_omniboard]}
    return {"$and": [{path: None}, {"$nor": [in_omniboard]}]}


def _on_list(path: str, value: list[Any]) -> Query:
    # A comparison by path would also find the list among the items of a list.
    same = {"$expr": {"$eq": [f"${path}", {"$literal": _as_stored(value)}]}}
    return {"$and": [*_no_lists(path), {path: {"$type": "array"}}, same]}


def _on_scalar(path: str, operator: str, value: Any) -> Query:
    # MongoDB would also compare the items of a list.
    lists = _no_lists(path)
    test = {path: {_OPERATORS[operator]: _as_stored(value), **_NO_LIST}}
    if not lists:
        return test
    return {"$or": [test, {"$nor": [{"$and": lists}]}]} if value is None else {"$and": [*lists, test]}


def _no_lists(path: str) -> list[Query]:
    """Return the conditions that no entry above a path is a list, as MongoDB would search its items."""
    parts = path.split(".")
    return [{".".join(parts[:count]): _NO_LIST} for count in range(2, len(parts))]


def _as_stored(value: Any) -> Any:
    """Return a value as a database holds it; see `sacristan.observers.mongo.documents`."""
    if isinstance(value, list):
        return [_as_stored(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and is_large(value):
        return bson.Decimal128(str(value))
    return value


def _on_id(operator: str, value: Any) -> Query:
    """Return a condition on the id, which compares numbers with numbers and texts with texts."""
    if operator in ("in", "=="):
        return {"_id": {"$in": [key for item in (value if operator == "in" else [value]) for key in keys_of(item)]}}
    return _NOTHING if _is_nan(value) else {"_id": {_OPERATORS[operator]: _as_stored(value)}}


def keys_of(id: Any) -> Iterator[Any]:
    """Yield each `_id` that an id may mean: a number or its digits, and an ObjectId or its text."""
    if _is_nan(id):
        return
    yield _as_stored(id)
    number = id_of(id) if isinstance(id, str) else id
    if isinstance(number, int) and not isinstance(number, bool):
        yield str(number)  # digits may be a text
        if -(2**63) <= number < 2**63:
            yield number
    if bson.ObjectId.is_valid(text := str(id)):
        yield bson.ObjectId(text)


def _on_duration(operator: str, value: Any) -> Query:
    """Return a condition on the duration, which no document holds."""
    if operator == "==" and value is None:
        return {"$expr": {"$eq": [_DURATION_S, None]}}
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return _NOTHING
    return {"$expr": {"$and": [{"$ne": [_DURATION_S, None]}, {_OPERATORS[operator]: [_DURATION_S, value]}]}}


def exists(name: str) -> Query:
    """Return the condition that a run has a field, or one below it."""
    path = stored_path(name)
    if path.startswith("tags."):
        return _on_tag(path, has_tag=True)
    return {"$and": [*_no_lists(path), {path: {"$exists": True}}]}


def sort_stages(question: Question) -> list[tuple[Query, str, int]]:
    """Return queries that, one after the other, find every run once and in order, unless sorted by duration.

    Each is a condition, and the path and direction to sort by. There is one for each kind of value, as every store
    sorts numbers before booleans before texts before the rest.
    """
    path = stored_path(question.by)
    direction = pymongo.DESCENDING if question.descending else pymongo.ASCENDING
    if question.by == "_id":
        return [({}, path, direction)]
    if question.by in TIMES:
        tests: list[Query] = [{"$type": "date"}]
    else:
        # A comparison finds values of its own kind; no comparison finds NaN.
        tests = [{"$gte": -math.inf}, {"$in": [False, True]}, {"$gte": ""}]
    kinds: list[Query] = [{"$and": [*_no_lists(path), {path: {**test, **_NO_LIST}}]} for test in tests]
    return [*((kind, path, direction) for kind in kinds), ({"$nor": kinds}, "_id", pymongo.ASCENDING)]
