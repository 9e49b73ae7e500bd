"""Text search in a database, with the same answers as the index over folders."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from runs.query.filters import SEARCHED, Condition, Filter, Not, Words, texts_to_search
from runs.query.names import id_of
from runs.stores.mongo.database import BATCH, MongoDatabase
from runs.stores.mongo.documents import note_in, plain, tags_in
from runs.stores.mongo.filters import OMNIBOARD_NOTES, OMNIBOARD_TAGS

__all__ = ["WordSearch"]

# A page asks several questions in a row, and one pass over thousands of documents is enough for them.
_FRESH_S = 1.0


class WordSearch:
    """Searches all runs of a database for words, and remembers the last result for a second.

    Args:
        mongo: The database.
    """

    def __init__(self, mongo: MongoDatabase) -> None:
        self._mongo = mongo
        self._words: tuple[str, ...] = ()
        self._ids: list[Any] = []
        self._searched_at = -math.inf

    def replaced(self, tree: Filter) -> Filter:
        """Return a filter in which every search is replaced by a condition on the ids that it finds.

        Args:
            tree: The filter, with any number of searches.

        Raises:
            pymongo.errors.PyMongoError: If the database cannot be read.
        """
        if isinstance(tree, Words):
            return Condition("_id", "in", self._ids_of(tree.words))
        if isinstance(tree, Condition):
            return tree
        parts = tuple(map(self.replaced, tree.parts))
        return Not(parts[0]) if isinstance(tree, Not) else type(tree)(parts)

    def _ids_of(self, words: tuple[str, ...]) -> list[Any]:
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
    tags = tags_in(document)
    return texts_to_search(plain({**document, "note": note_in(document)}), tags if isinstance(tags, Mapping) else ())


def _lower(text: str) -> bytes:
    """Return a text as bytes with lower-case ASCII letters; SQLite lowers no others either."""
    return text.encode("utf-8", "replace").lower()
