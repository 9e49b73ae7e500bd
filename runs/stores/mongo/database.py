"""`MongoDatabase`: an open connection to a database of runs."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import gridfs
import pymongo
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import ConfigurationError, ConnectionFailure, InvalidURI, PyMongoError

from sacristan.observers.mongo.destination import Destination, explain
from sacristan.observers.mongo.layout import Collections, Document
from sacristan.runs.errors import StoreAwayError, StoreError

__all__ = ["BATCH", "Document", "MongoDatabase"]

# Documents per batch of a long answer. The default is 16 MB, which is five times as much in Python objects.
BATCH = 1_000


class MongoDatabase:
    """A database of runs, its connection and its collections.

    Args:
        url: `mongodb://` or `mongodb+srv://`, with the database's name (`sacred` if it has none).
        prefix: Prefix of the collections' names, without the underscore; or the name of the collection of runs.

    Attributes:
        destination: The database as observers name it, with credentials.
        where: The URL without credentials, with the prefix.
        raw_metrics: `metrics` as bytes; see `sacristan.runs.stores.mongo.bson_arrays`.

    Raises:
        StoreError: If the server cannot be reached, or refuses.
    """

    def __init__(self, url: str, prefix: str = "") -> None:
        try:
            name = pymongo.uri_parser.parse_uri(url)["database"] or "sacred"
            self.destination = destination = Destination(url, name, prefix)
            self._client: pymongo.MongoClient[Document] = destination.connect()
        except (ConfigurationError, InvalidURI, ValueError) as error:
            raise StoreError(f"the store's URL: {explain(error)}") from error
        self.where = destination.label
        self.database = self._client[name]
        try:
            with self.errors():
                self.collections = self._find_collections(prefix)
        except StoreError:
            self.close()
            raise
        self.runs, self.metrics = self.collections.runs, self.collections.metrics
        self.raw_metrics = self.metrics.with_options(CodecOptions(document_class=RawBSONDocument))
        self.chunks, self.media = self.collections.chunks, self.collections.media
        self.fs = gridfs.GridFS(self.database)

    @property
    def confirmed(self) -> Collections:
        """The collections for changes, which return when a majority of the servers has written them to disk."""
        return self.collections.confirmed

    def _find_collections(self, prefix: str) -> Collections:
        """Return the collections of a prefix; if they have no runs, the collection of that name and `metrics`."""
        collections = Collections(self.database, prefix)
        if collections.runs.find_one({}, {"_id": 1}) is None and prefix:
            alone = Collections(self.database, collection=prefix)
            # Runs that SEML has staged have no experiment yet.
            is_run = {"$or": [{name: {"$exists": True}} for name in ("experiment", "seml")]}
            if alone.runs.find_one(is_run, {"_id": 1}) is not None:
                return alone
        return collections

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the server into StoreError."""
        try:
            yield
        except ConnectionFailure as error:
            raise StoreAwayError(f"MongoDB at {self.where}: {explain(error)}") from error
        except PyMongoError as error:
            raise StoreError(f"MongoDB at {self.where}: {explain(error)}") from error

    def open_file(self, key: Any, name: str) -> BinaryIO:
        """Open a file by its `_id`; raise a StoreError that calls it `name` if it is missing."""
        with self.errors():
            try:
                return self.fs.get(key)
            except gridfs.errors.NoFile as error:
                raise StoreError(f"{name} is not in the database") from error

    def contents(self, keys: Iterable[Any]) -> dict[Any, bytes]:
        """Return the contents of many files by id, in two queries.

        Files that are missing, or whose length or MD5 differs from their record, are left out.
        """
        wanted = {"$in": list(keys)}
        found: dict[Any, list[bytes]] = {}
        with self.errors():
            records = list(self.database.fs.files.find({"_id": wanted}, {"length": 1, "md5": 1}))
            for chunk in self.database.fs.chunks.find({"files_id": wanted}).sort([("files_id", 1), ("n", 1)]):
                found.setdefault(chunk["files_id"], []).append(chunk["data"])
        contents = {record["_id"]: b"".join(found.get(record["_id"], ())) for record in records}
        return {
            record["_id"]: content
            for record in records
            if len(content := contents[record["_id"]]) == record.get("length")
            and record.get("md5") in (None, hashlib.md5(content, usedforsecurity=False).hexdigest())
        }

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
