"""Notes in runs' documents of the messages that were sent about them; see `sacristan.observers.notifying.messages`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sacristan.observers.notifying.messages import ABANDONED_S, SENT
from sacristan.runs.stores.mongo.database import Document, MongoDatabase

__all__ = ["MessageNotes"]

# The note on a message that no receiver took; while it is being sent, the note is the time.
_UNSENT = "unsent"


class MessageNotes:
    """The messages about the runs of a database; every method raises StoreError if it cannot be read or written."""

    def __init__(self, mongo: MongoDatabase) -> None:
        self._mongo = mongo

    def claim(self, key: Any, event: str) -> bool:
        """Claim a message; return whether the caller must send it."""
        name = _name(event)
        free = {"_id": key, "$or": [{name: {"$exists": False}}, *_is_free(name)]}
        with self._mongo.errors():
            change = {"$set": {name: datetime.now(UTC).isoformat()}}
            return bool(self._mongo.confirmed.runs.update_one(free, change).modified_count)

    def note(self, key: Any, event: str, *, is_sent: bool) -> None:
        """Note whether a receiver took a message that the caller claimed."""
        with self._mongo.errors():
            self._mongo.confirmed.runs.update_one({"_id": key}, {"$set": {_name(event): SENT if is_sent else _UNSENT}})

    def is_unsent(self, key: Any, event: str) -> bool:
        """Tell whether sending a message was tried, but no receiver took it or its sender is gone."""
        with self._mongo.errors():
            return bool(self._mongo.runs.count_documents({"_id": key, "$or": _is_free(_name(event))}, limit=1))


def _name(event: str) -> str:
    return f"notified.{event}"


def _is_free(name: str) -> list[Document]:
    abandoned = (datetime.now(UTC) - timedelta(seconds=ABANDONED_S)).isoformat()
    return [{name: _UNSENT}, {name: {"$lte": abandoned}}]  # digits come before letters
