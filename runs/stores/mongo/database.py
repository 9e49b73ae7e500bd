"""`MongoDatabase`: an open connection to a database of runs."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import gridfs
import pymongo
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import ConfigurationError, ConnectionFailure, InvalidURI, PyMongoError

from sacristan.observers.errors import DestinationError
from sacristan.observers.mongo import Destination, explain, is_unconfirmed
from sacristan.observers.mongo.layout import Collections, Document
from sacristan.runs.errors import StoreAwayError, StoreError

# Documents per batch of a long answer. The default is 16 MB, which is five times as much in Python objects.
BATCH = 1_000


@contextlib.contextmanager
def errors_of(where: str) -> Iterator[None]:
    """Turn errors of a server into StoreError, and into StoreAwayError those that a later try may not meet."""
    try:
        yield
    except PyMongoError as error:
        is_away = isinstance(error, ConnectionFailure) or is_unconfirmed(error)
        raise (StoreAwayError if is_away else StoreError)(f"MongoDB at {where}: {explain(error)}") from error


class MongoDatabase:
    """A database of runs, its connection and its collections; StoreError if the server cannot be reached or refuses."""

    def __init__(self, address: str) -> None:
        """Connect to a URL with the database's name (`sacred` if it has none), or to a `Destination.address`.

        Behind a `#`, a URL may have the prefix of the collections' names, without the underscore, or the name of the
        collection of runs.
        """
        try:
            destination = Destination.at(address)
            assert destination is not None
            self._client: pymongo.MongoClient[Document] = destination.connect()
        except (ConfigurationError, DestinationError, InvalidURI, ValueError) as error:
            raise StoreError(f"the store's URL: {explain(error)}") from error
        self.where = destination.label  # without credentials, with the prefix
        self.database = self._client[destination.db_name]
        self.collections = Collections(self.database, destination.prefix, destination.collection)
        try:
            with self.errors():
                has_runs = self.collections.runs.find_one({}, {"_id": 1}) is not None
                if not has_runs and destination.prefix and "/" not in address.partition("#")[2]:
                    self.collections = self._with_runs(self.collections)
        except StoreError:
            self.close()
            raise
        self.destination = dataclasses.replace(
            destination, prefix=self.collections.prefix, collection=self.collections.collection
        )
        self.runs, self.metrics = self.collections.runs, self.collections.metrics
        # As bytes; see `sacristan.runs.stores.mongo.batches`.
        self.raw_metrics = self.metrics.with_options(CodecOptions(document_class=RawBSONDocument))
        self.chunks, self.media = self.collections.chunks, self.collections.media
        self.fs = gridfs.GridFS(self.database)

    @property
    def confirmed(self) -> Collections:
        """The collections for changes, which return when a majority of the servers has written them to disk."""
        return self.collections.confirmed

    def _with_runs(self, collections: Collections) -> Collections:
        """Return the collections of a prefix without runs, or the collection of that name and `metrics`, if it has."""
        alone = Collections(self.database, collection=collections.prefix)
        # Runs that SEML has staged have no experiment yet.
        is_run = {"$or": [{name: {"$exists": True}} for name in ("experiment", "seml")]}
        return collections if alone.runs.find_one(is_run, {"_id": 1}) is None else alone

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Turn errors of the server into StoreError."""
        return errors_of(self.where)

    def open_file(self, key: Any, name: str) -> BinaryIO:
        """Open a file by its `_id`; raise a StoreError that calls it `name` if it is missing."""
        with self.errors():
            try:
                return self.fs.get(key)
            except gridfs.errors.NoFile as error:
                raise StoreError(f"{name} is not in the database") from error

    def contents(self, keys: Iterable[Any]) -> dict[Any, bytes]:
        """Return the contents of many files by id, in two queries, without missing ones and those that differ."""
        wanted = {"$in": list(keys)}
        pieces: dict[Any, list[bytes]] = {}
        with self.errors():
            records = list(self.database.fs.files.find({"_id": wanted}, {"length": 1, "md5": 1}))
            for chunk in self.database.fs.chunks.find({"files_id": wanted}).sort([("files_id", 1), ("n", 1)]):
                pieces.setdefault(chunk["files_id"], []).append(chunk["data"])
        contents = {record["_id"]: b"".join(pieces.get(record["_id"], ())) for record in records}
        return {
            record["_id"]: content
            for record in records
            if len(content := contents[record["_id"]]) == record.get("length")
            and record.get("md5") in (None, hashlib.md5(content, usedforsecurity=False).hexdigest())
        }

    def close(self) -> None:
        self._client.close()
