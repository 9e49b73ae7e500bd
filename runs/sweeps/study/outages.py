"""`Outages`: waits for a database that is away for a while, so that a sweep outlives a restart of its server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pymongo.collection import Collection
from pymongo.errors import ConnectionFailure, DuplicateKeyError, PyMongoError

from sacristan.observers.mongo.destination import explain, is_unconfirmed
from sacristan.runs.errors import StoreError

__all__ = ["Outages"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_RETRY_S = 0.5
_FIRST_ANSWER_S = 60.0
_SLOW = ("timed out", "No servers found yet")


class Outages:
    """Asks a database, again and again while it cannot be reached, or no majority of its servers confirms a write.

    One that has never answered is not waited for: its address is wrong, or its server was not started. It has some
    seconds only if it accepts connections, or seems to, as a server does that hundreds of agents ask at once.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._has_answered = False
        self._is_hurried = False
        self._over: float | None = None

    def ask(self, question: Callable[[], _T]) -> _T:
        """Ask the database, again while it cannot be reached; StoreError means that it refuses, or has never answered.

        `question` may be called again after an answer was lost, so it must allow for that.
        """
        is_away = False
        patience = time.monotonic() + _FIRST_ANSWER_S
        while True:
            try:
                answer = question()
            except PyMongoError as error:
                may_be_slow = any(sign in str(error) for sign in _SLOW) and time.monotonic() < patience
                is_slow = isinstance(error, ConnectionFailure) and (self._has_answered or may_be_slow)
                if self._is_hurried or not (is_slow or is_unconfirmed(error)):
                    raise self.error(error) from error
                if not is_away:
                    _log.warning("MongoDB at %s: %s; waiting for it", self._place, explain(error))
                is_away = True
                time.sleep(_RETRY_S)
            else:
                self._has_answered = True
                if is_away:
                    self._over = time.monotonic()
                    _log.warning("MongoDB at %s is back", self._place)
                return answer

    def insert(self, collection: Callable[[], Collection[dict[str, Any]]], document: dict[str, Any]) -> bool:
        """Insert a document; False if one with its `_id` exists, perhaps from a first try whose answer was lost."""

        def insert() -> bool:
            try:
                collection().insert_one(document)
            except DuplicateKeyError:
                key = {"_id": document["_id"]}
                collection().update_one(key, {"$set": key})  # changes nothing, and confirms the first try
                return False
            return True

        return self.ask(insert)

    def hurry(self) -> None:
        """Stop waiting, because this process is about to end."""
        self._is_hurried = True

    def let_others_beat(self, seconds: float) -> None:
        """Wait until others had some seconds since the last outage to renew their leases, which are judged next."""
        if self._over is not None and not self._is_hurried:
            time.sleep(max(self._over + seconds - time.monotonic(), 0))
            self._over = None

    def error(self, error: PyMongoError) -> StoreError:
        """Return an error of the database as one of ours."""
        return StoreError(f"MongoDB at {self._place}: {explain(error)}")
