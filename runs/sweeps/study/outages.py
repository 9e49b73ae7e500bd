"""`PatientDocuments`: documents of a store that may be away for a while, so a sweep outlives a server's restart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from sacristan.runs.errors import StoreAwayError
from sacristan.runs.stores.contract import Backend, Change, Documents

__all__ = ["PatientDocuments"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_RETRY_S = 0.5
_FIRST_ANSWER_S = 60.0
_SLOW = ("timed out", "No servers found yet")


class PatientDocuments(Documents):
    """Documents of a store that is opened at the first question, and asked again while it is away.

    A store that has never answered is not waited for: its address is wrong, or its server was not started. It has some
    seconds only if it accepts connections, or seems to, as a server does that hundreds of agents ask at once.
    """

    def __init__(self, open: Callable[[], Backend]) -> None:
        self._open = open
        self._backend: Backend | None = None
        self._has_answered = False
        self._is_hurried = False
        self._over: float | None = None

    @property
    def where(self) -> str:
        """The store's URL without credentials."""
        return self.ask(lambda _: self._opened().where)

    def close(self) -> None:
        """Close the store."""
        if self._backend is not None:
            self._backend.close()

    def read(
        self,
        kind: str,
        owner: Any = "",
        names: Collection[str] | None = None,
        *,
        after: str | None = None,
        where: Mapping[str, Collection[Any]] | None = None,
        entries: Collection[str] | None = None,
    ) -> dict[str, Any]:
        return self.ask(lambda own: own.read(kind, owner, names, after=after, where=where, entries=entries))

    def change(self, kind: str, name: str, change: Change, owner: Any = "") -> bool:
        return self.ask(lambda own: own.change(kind, name, change, owner))

    def count(self, kind: str, name: str, start: int, limit: float) -> int | None:
        return self.ask(lambda own: own.count(kind, name, start, limit))

    def ask(self, question: Callable[[Documents], _T]) -> _T:
        """Ask the store, again while it is away; StoreError means that it refuses, or has never answered.

        `question` may be called again after an answer was lost, so it must allow for that.
        """
        is_away = False
        patience = time.monotonic() + _FIRST_ANSWER_S
        while True:
            try:
                answer = question(self._opened().documents)
            except StoreAwayError as error:
                may_be_slow = any(sign in str(error.__cause__) for sign in _SLOW) and time.monotonic() < patience
                if self._is_hurried or not (self._has_answered or may_be_slow):
                    raise
                if not is_away:
                    _log.warning("%s; waiting for it", error)
                is_away = True
                time.sleep(_RETRY_S)
            else:
                self._has_answered = True
                if is_away:
                    self._over = time.monotonic()
                    _log.warning("%s is back", self._opened().where)
                return answer

    def _opened(self) -> Backend:
        if self._backend is None:
            self._backend = self._open()
            self._has_answered = True
        return self._backend

    def hurry(self) -> None:
        """Stop waiting, because this process is about to end."""
        self._is_hurried = True

    def let_others_beat(self, seconds: float) -> None:
        """Wait until others had some seconds since the last outage to renew their leases, which are judged next."""
        if self._over is not None and not self._is_hurried:
            time.sleep(max(self._over + seconds - time.monotonic(), 0))
            self._over = None
