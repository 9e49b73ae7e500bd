"""Questions as MongoDB queries that give the same answers as the index over folders, and documents as rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import bson
import pymongo
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from sacristan.configs.map import value_at
from sacristan.observers.mongo.documents import stored_key
from sacristan.observers.record.identity import last_sign, true_status
from sacristan.observers.record.json_text import is_large
from sacristan.runs.query import DURATION, DURATION_FIELDS, TIMES, duration_s, id_of, mapping_of, without_pickles
from sacristan.runs.query.filters import (
    SEARCHED,
    Condition,
    Filter,
    Not,
    OneOf,
    Question,
    Words,
    holds,
    texts_to_search,
)
from sacristan.runs.stores.mongo.database import BATCH, Document, MongoDatabase

Query = dict[str, Any]
# Where Omniboard keeps tags, a list, and the note on a run, a text.
OMNIBOARD_TAGS, OMNIBOARD_NOTES = "omniboard.tags", "omniboard.notes"
_OPERATORS = {"==": "$eq", "<": "$lt", "<=": "$lte", ">": "$gt", ">=": "$gte"}
_NOTHING: Query = {"_id": {"$in": []}}
_NO_LIST: Query = {"$not": {"$type": "array"}}


def _is_time(expression: str) -> Query:
    return {"$eq": [{"$type": expression}, "date"]}


# `sacristan.runs.query.duration_s` as an expression, in seconds; null where that is None. To filter 20,000
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
    parts = [part for part in parts if part]
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
    path = stored_path(name)
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


# The fields that `true_status` reads.
STATUS_FIELDS = ("status", "lease", "heartbeat", "start_time", "meta.options", "uid")
# Most values are of these types, and stay as they are.
_SAME = frozenset((type(None), bool, int, float, str))


# ---------------------------------------------------------------------- values


def from_bson(value: Any) -> Any:
    """Return a BSON value as JSON: times in ISO 8601, decimals as numbers, keys and other types as text."""
    if isinstance(value, Mapping):
        return {str(key): item if type(item) in _SAME else from_bson(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if type(item) in _SAME else from_bson(item) for item in value]
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return int(value)  # Int64
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bson.Decimal128):
        number = value.to_decimal()
        # An integer beyond 64 bits; see `sacristan.observers.mongo.documents`.
        return int(number) if number.is_finite() and number.as_tuple().exponent == 0 else float(number)
    return str(value)


def as_recorded(value: Any, *, twice: bool = False) -> Any:
    """Return a BSON value as `from_bson` does, with plain values for what Sacred serialized; see `without_pickles`."""
    if isinstance(value, Mapping):
        if "dtype" in value or "py/tuple" in value:
            return without_pickles(from_bson(value), twice=twice)
        return {
            str(key): item if type(item) in _SAME else as_recorded(item, twice=twice) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [item if type(item) in _SAME else as_recorded(item, twice=twice) for item in value]
    return from_bson(value)


def has_changed_keys(summary: Mapping[str, Any]) -> bool:
    """Tell whether a stored summary may have other keys than the names of its metrics."""
    return any("," in key or key.startswith("@") for key in summary)


def tags_in(document: Mapping[str, Any]) -> Any:
    """Return the tags in a run's document, including those set in Omniboard, as a mapping of tags to True.

    A foreign document may hold anything else in its place, which is returned.
    """
    tags, others = document.get("tags"), mapping_of(document.get("omniboard")).get("tags")
    if not isinstance(others, list) or not isinstance(tags or {}, Mapping):
        return tags
    return {**(tags or {}), **{tag: True for tag in others if isinstance(tag, str)}}


def note_in(document: Mapping[str, Any]) -> Any:
    """Return the note in a run's document: Omniboard's if there is one, as our own is also written there."""
    notes = mapping_of(document.get("omniboard")).get("notes")
    return notes if isinstance(notes, str) else document.get("note")


def with_dots(packages: Any) -> Any:
    """Return packages by their names, with dots for the commas in a document's keys."""
    return {name.replace(",", "."): one for name, one in packages.items()} if isinstance(packages, dict) else packages


# ---------------------------------------------------------------------- fields


# Fields that a row's field is computed from.
_MADE_OF = {
    "status": STATUS_FIELDS,
    DURATION: (*STATUS_FIELDS, *DURATION_FIELDS),
    "tags": ("tags", OMNIBOARD_TAGS),
    "note": ("note", OMNIBOARD_NOTES),
}


def projection_of(names: Iterable[str]) -> dict[str, int]:
    """Return the projection for `row_in`, without a path below another one, as MongoDB rejects both together."""
    paths = {path for name in names for path in _MADE_OF.get(name) or (stored_path(name),)}
    kept: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith(f"{other}.") for other in kept):
            kept.append(path)
    return dict.fromkeys(kept or ["_id"], 1)


def row_in(document: Document, names: Iterable[str]) -> Document:
    """Return fields of a document, found with `projection_of(names)`, by name; `_id` is skipped.

    A summary with changed keys is left out, as only the run can look up its metrics.
    """
    row = {}
    for name in names:
        if name != "_id":
            computed = _COMPUTED.get(name)
            row[name] = computed(document) if computed is not None else _field_at(document, stored_path(name))
    if isinstance(row.get("summary"), Mapping) and has_changed_keys(row["summary"]):
        del row["summary"]
    return row


def _status(document: Document) -> Any:
    return true_status({**document, "status": from_bson(document.get("status"))}, document.get("lease"))


def _duration(document: Document) -> float | None:
    lease = from_bson(document.get("lease"))
    last = last_sign(true_status(document, lease), lease) if document.get("status") == "RUNNING" else None
    return duration_s({field: from_bson(document.get(field)) for field in DURATION_FIELDS}, last)


_COMPUTED: dict[str, Callable[[Document], Any]] = {
    "status": _status,
    DURATION: _duration,
    "tags": lambda document: tags_in(from_bson({name: document.get(name) for name in ("tags", "omniboard")})),
    "note": lambda document: from_bson(note_in(document)),
}


def _field_at(document: Document, path: str) -> Any:
    return as_recorded(value_at(document, path), twice=path.partition(".")[0] == "result")


# A page asks several questions in a row, and one pass over thousands of documents is enough for them.
_FRESH_S = 1.0


class ComputedConditions:
    """Finds the runs that match a text search or a regular expression.

    The server's regular expressions are of another dialect. The result of the last text search is kept for a second.
    """

    def __init__(self, mongo: MongoDatabase) -> None:
        self._mongo = mongo
        self._words: tuple[str, ...] = ()
        self._ids: list[Any] = []
        self._searched_at = -math.inf

    def replaced(self, tree: Filter) -> Filter:
        """Replace every such condition of a filter by one on the ids it finds; errors of pymongo pass unchanged."""
        if isinstance(tree, Words):
            return Condition("_id", "in", self._having(tree.words))
        if isinstance(tree, Condition):
            return Condition("_id", "in", list(self._matching(tree))) if tree.operator == "~" else tree
        parts = tuple(map(self.replaced, tree.parts))
        return Not(parts[0]) if isinstance(tree, Not) else type(tree)(parts)

    def _matching(self, condition: Condition) -> Iterator[Any]:
        name = condition.name
        for document in self._mongo.runs.find({}, projection_of([name]), batch_size=BATCH):
            id = str(document["_id"])
            if holds(condition, id if name == "_id" else row_in(document, [name])[name]):
                yield id_of(id)

    def _having(self, words: tuple[str, ...]) -> list[Any]:
        if words != self._words or time.monotonic() - self._searched_at > _FRESH_S:
            self._ids = [id_of(str(key)) for key in _having(words, self._mongo)]
            self._words, self._searched_at = words, time.monotonic()
        return self._ids


def _having(words: tuple[str, ...], mongo: MongoDatabase) -> Iterator[Any]:
    """Yield the `_id` of the runs whose texts contain all words."""
    lowered = [_lower(word) for word in words]
    raw = mongo.runs.with_options(CodecOptions(document_class=RawBSONDocument))
    searched = dict.fromkeys(("config", "tags", OMNIBOARD_TAGS, OMNIBOARD_NOTES, *SEARCHED), 1)
    for document in raw.find({}, searched, batch_size=BATCH):
        # The bytes rule out most runs; decoding them all would take ten times as long.
        data = bytes(document.raw)
        data_lower = data.lower()
        if all(word in data_lower for word in lowered):
            decoded = bson.decode(data)
            searchable = from_bson({**decoded, "note": note_in(decoded)})
            texts = list(map(_lower, texts_to_search(searchable, mapping_of(tags_in(decoded)))))
            if all(any(word in text for text in texts) for word in lowered):
                yield decoded["_id"]


def _lower(text: str) -> bytes:
    """Return a text as bytes with lower-case ASCII letters; SQLite lowers no others either."""
    return text.encode("utf-8", "replace").lower()
