"""Versions of artifacts in MongoDB: their aliases, one document per move, which never changes; and their download.

    artifact_aliases   _id NAME:ALIAS.NUMBER, artifact, and a `Move`

The `_id` is unique, so if two processes move an alias at once, one of them learns what it names now.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gridfs
from pymongo.errors import DuplicateKeyError

from sacristan.observers.artifacts import ArtifactVersion, Reference, from_manifest, parse_reference
from sacristan.observers.artifacts.aliases import LATEST, Move, Named, is_same, named_at, next_move, present_moves
from sacristan.observers.artifacts.intake import Incoming
from sacristan.observers.errors import ArtifactDamagedError, ArtifactError
from sacristan.observers.mongo.documents import content_id
from sacristan.observers.mongo.layout import Collections, Document, make_alias_indexes
from sacristan.observers.record.copies import CopyProgress
from sacristan.observers.record.json_text import parse_json

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
        moves = (Move.of(document["move"]) for document in self._collections.artifact_aliases.aggregate(last))
        return [move for move in moves if move is not None]

    def deliver(self, entry: Mapping[str, Any], version: int, run: str) -> None:
        """Carry out a move that a run's record names, unless that is done; `version` is the number in the database."""
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


# ---------------------------------------------------------------------- downloading a version


def fetch(collections: Collections, reference: str, root: Path) -> ArtifactVersion | None:
    """Download a version of an artifact, unless the local store below `root` has its contents; None if there is none.

    `reference` is as for `ArtifactStore.resolve`, with the database's numbers. Raises ArtifactError if it is invalid or
    the store cannot be written, ArtifactDamagedError, and PyMongoError if the database cannot be reached or refuses.
    """
    document = _find(collections, parse_reference(reference))
    if document is None:
        return None
    files = gridfs.GridFS(collections.database)
    try:
        manifest = parse_json(files.get(document["manifest_id"]).read())
        version = from_manifest(manifest, document["name"], document["version"], root / "contents")
        if version.digest != document["digest"]:
            raise ValueError("its manifest is that of another content")
        _download(version, files, root)
    except OSError as error:
        raise ArtifactError(
            f"{reference}: {root} cannot be written ({error.strerror}); make room or check its permissions"
        ) from error
    except (gridfs.errors.NoFile, gridfs.errors.CorruptGridFile, KeyError, ValueError) as error:
        raise ArtifactDamagedError(f"{reference}: it is damaged in the database: {error}") from error
    return version


def _find(collections: Collections, wanted: Reference) -> Document | None:
    if wanted.alias is not None:
        move = MongoAliases(collections).last(wanted.name, wanted.alias)
        if move is None or move.digest is None:
            return None
        wanted = dataclasses.replace(wanted, digest=move.digest)
    if wanted.digest is None:
        number = {} if wanted.number is None else {"version": wanted.number}
        return collections.artifacts.find_one({"name": wanted.name, **number}, {"files": 0}, sort=[("version", -1)])
    query = {"name": wanted.name, "digest": re.compile(f"^{wanted.digest}")}
    matches = list(collections.artifacts.find(query, {"files": 0}).limit(2))
    if len(matches) > 1:
        raise ArtifactError(f"{wanted.name}@{wanted.digest}: it stands for several contents; give more digits")
    return matches[0] if matches else None


def _download(version: ArtifactVersion, files: gridfs.GridFS, root: Path) -> None:
    with Incoming(root) as incoming, CopyProgress(str(version), version.bytes) as progress:
        for file in {file.sha256: file for file in version.files}.values():
            if not incoming.holds(file.sha256, file.bytes):
                sha256, _ = incoming.take(files.get(content_id(file.sha256)), file.bytes, progress)
                if sha256 != file.sha256:
                    raise ValueError(f"the content of {file.path} is not what was logged")
        incoming.publish()
