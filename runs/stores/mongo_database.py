"""An open MongoDB database of runs: its collections, its files, and its errors in one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gridfs
import pymongo
from pymongo.collection import Collection
from pymongo.errors import ConfigurationError, InvalidURI, PyMongoError

from observers.mongo.delivery import REMOVED
from observers.mongo.destination import Destination, explain
from runs.errors import StoreError

__all__ = ["Document", "MongoDatabase"]

Document = dict[str, Any]


class MongoDatabase:
    """A database of runs, and its connection.

    Args:
        url: `mongodb://` or `mongodb+srv://`, with the database's name (`sacred` if it has none).
        prefix: Of the collections' names, without its underscore.

    Attributes:
        where: The URL without credentials, with the prefix.
        prefix: Of the collections' names, without its underscore.
        start: The same with its underscore.
        runs, metrics, chunks, media, removed: The collections.
        fs: The files.

    Raises:
        StoreError: If the server cannot be reached or refuses.
    """

    def __init__(self, url: str, prefix: str = "") -> None:
        try:
            name = pymongo.uri_parser.parse_uri(url)["database"] or "sacred"
            destination = Destination(url, name, prefix)
            self._client: pymongo.MongoClient[Document] = destination.connect()
        except (ConfigurationError, InvalidURI, ValueError) as error:
            raise StoreError(f"the store's URL: {explain(error)}") from error
        self.where = f"{destination.label}#{prefix}" if prefix else destination.label
        self.prefix = prefix
        self.start = f"{prefix}_" if prefix else ""
        self.database = self._client[name]
        self.runs = self._collection("runs")
        self.metrics = self._collection("metrics")
        self.chunks = self._collection("metrics_chunks")
        self.media = self._collection("media")
        self.removed = self._collection(REMOVED)
        self.fs = gridfs.GridFS(self.database)
        try:
            with self.errors():
                self.runs.find_one({}, {"_id": 1})
        except StoreError:
            self.close()
            raise

    def _collection(self, name: str) -> Collection[Document]:
        return self.database[f"{self.start}{name}"]

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what goes wrong with the server into a StoreError."""
        try:
            yield
        except PyMongoError as error:
            raise StoreError(f"MongoDB at {self.where}: {explain(error)}") from error

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
