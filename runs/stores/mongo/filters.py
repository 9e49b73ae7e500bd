"""Filters and sorts as MongoDB takes them, with the same answers as the index over folders gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

import bson
import pymongo

from observers.mongo.documents import stored_key
from observers.record.storable import is_large
from runs.query.filters import AllOf, Condition, Filter, Not, OneOf, Words, holds
from runs.query.names import TIMES, full_name
from runs.query.times import DURATION

__all__ = ["OMNIBOARD_NOTES", "OMNIBOARD_TAGS", "exists", "query_of", "sort_stages", "stored_path"]

_COMPARISONS = {"<": "$lt", "<=": "$lte", ">": "$gt", ">=": "$gte"}
_NOTHING: dict[str, Any] = {"_id": {"$in": []}}


def _is_time(expression: str) -> dict[str, Any]:
    return {"$eq": [{"$type": expression}, "date"]}


# What `runs.query.times.duration_s` computes, in seconds; null where it is None.
_DURATION_S: dict[str, Any] = {
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
    """Return the path of a full name in a run's document, where a metric's name holds no dots."""
    if name.startswith("summary."):
        metric, _, statistic = name.removeprefix("summary.").rpartition(".")
        return f"summary.{stored_key(metric)}.{statistic}" if metric else name
    return name


# Where Omniboard keeps the words that people attach there: a list.
OMNIBOARD_TAGS = "omniboard.tags"
# And the note on a run: a text.
OMNIBOARD_NOTES = "omniboard.notes"
Found = Mapping[Condition, Sequence[Any]]


def query_of(tree: Filter, dead: Sequence[Any] = (), found: Found = MappingProxyType({})) -> dict[str, Any]:
    """Return a filter as a MongoDB query.

    Args:
        tree: The filter.
        dead: `_id` of the runs that say RUNNING and are DEAD.
        found: `_id` of the runs that each of its regular expressions finds; those of the server are of another dialect.
    """
    if isinstance(tree, AllOf):
        parts = [part for part in (query_of(part, dead, found) for part in tree.parts) if part]
        return parts[0] if len(parts) == 1 else {"$and": parts} if parts else {}
    if isinstance(tree, OneOf):
        return {"$or": [query_of(part, dead, found) for part in tree.parts]} if tree.parts else _NOTHING
    if isinstance(tree, Not):
        return {"$nor": [query_of(tree.part, dead, found)]}
    assert not isinstance(tree, Words)  # see `runs.stores.mongo.words`
    if tree.operator == "~":
        stored: dict[str, Any] = {"_id": {"$in": list(found[tree])}}
    else:
        stored = _condition(tree)
    if tree.name == "status" and dead:
        stored = {"$and": [stored, {"_id": {"$nin": list(dead)}}]}
        return {"$or": [stored, {"_id": {"$in": list(dead)}}]} if holds(tree, "DEAD") else stored
    return stored


def _condition(condition: Condition) -> dict[str, Any]:
    path, operator, value = stored_path(condition.name), condition.operator, condition.value
    if operator == "in":
        return query_of(OneOf(tuple(Condition(condition.name, "==", item) for item in value)))
    if operator == "!=":
        return {"$nor": [_condition(Condition(condition.name, "==", value))]}
    if condition.name == "_id":
        return _on_id(operator, value)
    if condition.name == DURATION:
        return _on_duration(operator, value)
    if isinstance(value, float) and math.isnan(value) and operator != "==":
        return _NOTHING
    if condition.name in TIMES and isinstance(value, str):
        value = datetime.fromisoformat(value)
    if path.startswith("tags.") and (value is True or value is None) and operator == "==":
        word = {OMNIBOARD_TAGS: path.removeprefix("tags.")}
        stored = {path: value}
        return {"$or": [stored, word]} if value else {"$and": [stored, {"$nor": [word]}]}
    lists = _no_lists(path)
    if isinstance(value, list):
        # A comparison by path would find the list among the items of a list, too.
        same = {"$expr": {"$eq": [f"${path}", {"$literal": _as_stored(value)}]}}
        return {"$and": [*lists, {path: {"$type": "array"}}, same]}
    # MongoDB looks into lists, too.
    test = {_COMPARISONS.get(operator, "$eq"): _as_stored(value), "$not": {"$type": "array"}}
    if value is None and lists:
        return {"$or": [{path: test}, {"$nor": [{"$and": lists}]}]}
    return {"$and": [*lists, {path: test}]} if lists else {path: test}


def _no_lists(path: str) -> list[dict[str, Any]]:
    """Return conditions that none of the entries above a path is a list, whose items MongoDB would go into."""
    parts = path.split(".")
    return [{".".join(parts[:count]): {"$not": {"$type": "array"}}} for count in range(2, len(parts))]


def _as_stored(value: Any) -> Any:
    """Return a value as it is in a database; see `observers.mongo.documents`."""
    if isinstance(value, list):
        return [_as_stored(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and is_large(value):
        return bson.Decimal128(str(value))
    return value


def _on_id(operator: str, value: Any) -> dict[str, Any]:
    """Return a condition on the ids, of which the numbers are compared with numbers, and the texts with texts."""
    if isinstance(value, float) and math.isnan(value):
        return _NOTHING
    value = _as_stored(value)
    if operator != "==":
        return {"_id": {_COMPARISONS[operator]: value}}
    # A text of digits may have been asked for as a run's id.
    same = [value, *([str(value)] if isinstance(value, int) else [])]
    if isinstance(value, str) and bson.ObjectId.is_valid(value):
        same.append(bson.ObjectId(value))
    return {"_id": {"$in": same}}


def _on_duration(operator: str, value: Any) -> dict[str, Any]:
    """Return a condition on the duration, which no document holds."""
    if operator == "==" and value is None:
        return {"$expr": {"$eq": [_DURATION_S, None]}}
    if operator == "~" or isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return _NOTHING
    test = {"$eq" if operator == "==" else _COMPARISONS[operator]: [_DURATION_S, value]}
    return {"$expr": {"$and": [{"$ne": [_DURATION_S, None]}, test]}}


def exists(name: str) -> dict[str, Any]:
    """Return the condition that a run has the field of that full name, or one below it."""
    path = stored_path(name)
    return {"$and": [*_no_lists(path), {path: {"$exists": True}}]}


def sort_stages(sort: str | None) -> list[tuple[dict[str, Any], str, int]]:
    """Return condition, path and direction of queries that, one behind the other, give every run once, in order."""
    if not sort:
        return [({}, "_id", pymongo.ASCENDING)]
    name = full_name(sort.removeprefix("-"))
    path = stored_path(name)
    direction = pymongo.DESCENDING if sort.startswith("-") else pymongo.ASCENDING
    if name == "_id":
        return [({}, path, direction)]
    if name in TIMES:
        tests: list[dict[str, Any]] = [{"$type": "date"}]
    else:
        # A comparison finds numbers only, or texts only; and NaN is none of them.
        tests = [{"$gte": -math.inf}, {"$in": [False, True]}, {"$gte": ""}]
    lists = _no_lists(path)
    kinds: list[dict[str, Any]] = [{path: {**test, "$not": {"$type": "array"}}} for test in tests]
    kinds = [{"$and": [*lists, kind]} if lists else kind for kind in kinds]
    rest = {"$nor": kinds}
    return [*((kind, path, direction) for kind in kinds), (rest, "_id", pymongo.ASCENDING)]
