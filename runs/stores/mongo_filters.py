"""Filters and sorts as MongoDB takes them, with the same answers as the index over folders gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pymongo

from observers.mongo.documents import stored_key
from observers.record.numbered_folder import as_number
from runs.query.filters import AllOf, Condition, Filter, Not, OneOf, holds
from runs.query.names import TIMES, full_name
from runs.query.times import DURATION

__all__ = ["query_of", "sort_stages", "stored_path"]

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
                {"$and": [_is_time("$$start"), _is_time("$$stop")]},
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


def query_of(tree: Filter, dead: Sequence[Any] = ()) -> dict[str, Any]:
    """Return a filter as a MongoDB query.

    Args:
        tree: The filter.
        dead: `_id` of the runs that say RUNNING and are DEAD.
    """
    if isinstance(tree, AllOf):
        parts = [part for part in (query_of(part, dead) for part in tree.parts) if part]
        return parts[0] if len(parts) == 1 else {"$and": parts} if parts else {}
    if isinstance(tree, OneOf):
        return {"$or": [query_of(part, dead) for part in tree.parts]} if tree.parts else _NOTHING
    if isinstance(tree, Not):
        return {"$nor": [query_of(tree.part, dead)]}
    if tree.name == "status" and dead:
        stored = {"$and": [_condition(tree), {"_id": {"$nin": list(dead)}}]}
        return {"$or": [stored, {"_id": {"$in": list(dead)}}]} if holds(tree, "DEAD") else stored
    return _condition(tree)


def _condition(condition: Condition) -> dict[str, Any]:
    path, operator, value = stored_path(condition.name), condition.operator, condition.value
    if operator == "in":
        return query_of(OneOf(tuple(Condition(condition.name, "==", item) for item in value)))
    if operator == "!=":
        return {"$nor": [_condition(Condition(condition.name, "==", value))]}
    if condition.name == "_id" and operator == "==":
        number = as_number(value) if isinstance(value, str) else None
        # No number beyond 64 bits is in a database, and none can be asked for.
        other = str(value) if number is None or number >= 2**63 else number
        return {"_id": {"$in": [other] if _is_large(value) else [value, other]}}
    if condition.name == DURATION:
        return _on_duration(operator, value)
    if condition.name in TIMES and isinstance(value, str):
        value = datetime.fromisoformat(value)
    if _is_large(value):
        # A database holds such a number as text, and compares the others with a float as large.
        value = str(value) if operator == "==" else _as_float(value)
    if operator == "~":
        test = {"$regex": value}
    elif operator == "==":
        test = {"$eq": value}
    elif isinstance(value, float) and math.isnan(value):
        return _NOTHING
    else:
        test = {_COMPARISONS[operator]: value}
    if isinstance(value, list):
        return {path: test}
    # MongoDB looks into lists, too.
    return {path: {**test, "$not": {"$type": "array"}}}


def _is_large(value: Any) -> bool:
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _on_duration(operator: str, value: Any) -> dict[str, Any]:
    """Return a condition on the duration, which no document holds."""
    if operator == "==" and value is None:
        return {"$expr": {"$eq": [_DURATION_S, None]}}
    if operator == "~" or isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return _NOTHING
    test = {"$eq" if operator == "==" else _COMPARISONS[operator]: [_DURATION_S, value]}
    return {"$expr": {"$and": [{"$ne": [_DURATION_S, None]}, test]}}


def sort_stages(sort: str | None) -> list[tuple[dict[str, Any], str, int]]:
    """Return condition, path and direction of queries that, one behind the other, give every run once, in order."""
    if not sort:
        return [({}, "_id", pymongo.ASCENDING)]
    name = full_name(sort.removeprefix("-"))
    path = stored_path(name)
    direction = pymongo.DESCENDING if sort.startswith("-") else pymongo.ASCENDING
    if name == "_id":
        return [({}, path, direction)]
    kinds: list[dict[str, Any]]
    if name in TIMES:
        kinds = [{path: {"$type": "date"}}]
    else:
        # A comparison finds numbers only, or texts only; and NaN is none of them.
        kinds = [
            {path: {"$gte": -math.inf, "$not": {"$type": "array"}}},
            {path: {"$in": [False, True], "$not": {"$type": "array"}}},
            {path: {"$gte": "", "$not": {"$type": "array"}}},
        ]
    rest = {"$nor": kinds}
    return [*((kind, path, direction) for kind in kinds), (rest, "_id", pymongo.ASCENDING)]
