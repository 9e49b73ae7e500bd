"""Runs of a database by words in their texts, with the same answers as the index over folders gives."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from runs.query.filters import SEARCHED, AllOf, Condition, Filter, Not, OneOf, Words, texts_to_search
from runs.query.names import id_of
from runs.stores.mongo.bson_values import note_in, plain, tags_in
from runs.stores.mongo.database import BATCH, MongoDatabase
from runs.stores.mongo.filters import OMNIBOARD_NOTES, OMNIBOARD_TAGS

__all__ = ["WordSearch"]

# A list asks for more than its runs, and one look at thousands of documents is enough for it.
_FRESH_S = 1.0


class WordSearch:
    """Looks for words in all runs of a database, and knows what it found last for as long as one question takes.

    Args:
        mongo: The database.
    """

    def __init__(self, mongo: MongoDatabase) -> None:
        self._mongo = mongo
        self._words: tuple[str, ...] = ()
        self._found: list[Any] = []
        self._found_at = -math.inf

    def replaced(self, tree: Filter) -> Filter:
        """Return a filter with the ids of the runs that words find in place of the words."""
        if isinstance(tree, Words):
            return Condition("_id", "in", self._ids(tree.words))
        if isinstance(tree, Not):
            return Not(self.replaced(tree.part))
        if isinstance(tree, AllOf | OneOf):
            return type(tree)(tuple(map(self.replaced, tree.parts)))
        return tree

    def _ids(self, words: tuple[str, ...]) -> list[Any]:
        if words != self._words or time.monotonic() - self._found_at > _FRESH_S:
            self._found = [id_of(str(key)) for key in _having(words, self._mongo)]
            self._words, self._found_at = words, time.monotonic()
        return self._found


def _having(words: tuple[str, ...], mongo: MongoDatabase) -> Iterator[Any]:
    """Yield the `_id` of the runs whose texts contain all words."""
    wanted = [_lower(word) for word in words]
    raw = mongo.runs.with_options(CodecOptions(document_class=RawBSONDocument))
    searched = dict.fromkeys(("config", "tags", OMNIBOARD_TAGS, OMNIBOARD_NOTES, *SEARCHED), 1)
    for document in raw.find({}, searched, batch_size=BATCH):
        # Of most runs their bytes tell that they have no such word; to decode all would take ten times as long.
        data = bytes(document.raw)
        if not all(word in data.lower() for word in wanted):
            continue
        found = bson.decode(data)
        tags = tags_in(found)
        searched_in = plain({**found, "note": note_in(found)})
        texts = texts_to_search(searched_in, tags if isinstance(tags, Mapping) else ())
        if all(any(word in _lower(text) for text in texts) for word in wanted):
            yield found["_id"]


def _lower(text: str) -> bytes:
    """Return a text as bytes without capitals of ASCII, which is all that SQLite knows, too."""
    return text.encode("utf-8", "replace").lower()
