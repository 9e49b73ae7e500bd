"""Aliases of artifacts in MongoDB: one document per move, which never changes.

    artifact_aliases   _id NAME:ALIAS.NUMBER, artifact, and a `Move`

The `_id` is unique, so if two processes move an alias at once, one of them learns what it names now.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pymongo.errors import DuplicateKeyError

from sacristan.observers.artifacts.aliases import LATEST, Move, Named, is_same, named_at, next_move, present_moves
from sacristan.observers.mongo.layout import Collections, Document, make_alias_indexes

__all__ = ["MongoAliases", "alias_document"]

_log = logging.getLogger(__name__)


def alias_document(name: str, key: str, move: Mapping[str, Any]) -> Document:
    """Return the document of a move of an artifact's alias, whose `Move.key` is `key`."""
    return {"_id": f"{name}:{key}", "artifact": name, **move}


class MongoAliases:
    """The aliases of the artifacts of a database."""

    def __init__(self, collections: Collections) -> None:
        self._collections = collections

    def last(self, name: str, alias: str) -> Move | None:
        """Return the last move of an alias; None if it never named a version."""
        wanted = {"artifact": name, "alias": alias}
        return Move.of(self._collections.artifact_aliases.find_one(wanted, sort=[("number", -1)]))

    def present(self, name: str) -> dict[str, Move]:
        """Return the last move of each alias that names a version, by alias, sorted."""
        return present_moves(self._last_moves(name))

    def named(self, name: str) -> dict[str, Named]:
        """Return what `latest` and all aliases of an artifact name, by alias."""
        wanted = {"created": 1, "digest": 1}
        newest = self._collections.artifacts.find_one({"name": name}, wanted, sort=[("version", -1)])
        latest = {} if newest is None else {LATEST: named_at(newest["created"], newest["digest"])}
        return latest | {move.alias: (move.time, move.digest) for move in self._last_moves(name)}

    def _last_moves(self, name: str) -> list[Move]:
        last: list[Document] = [
            {"$match": {"artifact": name}},
            {"$sort": {"alias": 1, "number": 1}},
            {"$group": {"_id": "$alias", "move": {"$last": "$$ROOT"}}},
        ]
        moves = (Move.of(found["move"]) for found in self._collections.artifact_aliases.aggregate(last))
        return [move for move in moves if move is not None]

    def deliver(self, entry: Mapping[str, Any], version: int, run: str) -> None:
        """Carry out a move that a run's record names, unless that is done; a later move of others stays.

        `version` is the number of the version in the database.
        """
        name, alias = entry["name"], entry["alias"]
        aliases = self._collections.confirmed.artifact_aliases
        if aliases.find_one({"artifact": name, "alias": alias, "run": run, "time": entry["time"]}, {"_id": 1}):
            return
        make_alias_indexes(self._collections)
        while True:
            last = self.last(name, alias)
            if last is not None and last.time > entry["time"]:
                _log.warning(
                    "%s:%s stays as it is: it names %s, which is later than this run's move", name, alias, last
                )
                return
            if entry.get("removed") and (last is None or last.digest != entry["digest"]):
                return  # it names another version by now
            target = None if entry.get("removed") else (version, entry["digest"])
            move = next_move(last, name, alias, target, by=entry["by"], run=run, time=entry["time"])
            if is_same(move, last):
                return
            try:
                aliases.insert_one(alias_document(name, move.key, move.document()))
            except DuplicateKeyError:
                continue  # another process was faster
            return
