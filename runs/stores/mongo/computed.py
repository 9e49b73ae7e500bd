"""Conditions that MongoDB cannot evaluate, evaluated here with the same answers as by the index over folders."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from sacristan.runs.query.filters import SEARCHED, Condition, Filter, Not, Words, holds, texts_to_search
from sacristan.runs.query.flattening import mapping_of
from sacristan.runs.query.names import id_of
from sacristan.runs.stores.mongo.database import BATCH, MongoDatabase
from sacristan.runs.stores.mongo.filters import OMNIBOARD_NOTES, OMNIBOARD_TAGS
from sacristan.runs.stores.mongo.rows import from_bson, note_in, projection_of, row_in, tags_in

__all__ = ["ComputedConditions"]

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
            texts = list(map(_lower, _texts_of(decoded)))
            if all(any(word in text for text in texts) for word in lowered):
                yield decoded["_id"]


def _texts_of(document: dict[str, Any]) -> list[str]:
    return texts_to_search(from_bson({**document, "note": note_in(document)}), mapping_of(tags_in(document)))


def _lower(text: str) -> bytes:
    """Return a text as bytes with lower-case ASCII letters; SQLite lowers no others either."""
    return text.encode("utf-8", "replace").lower()
