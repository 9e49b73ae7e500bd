"""`Messages`: who sends which message about a run of a store, so that nobody sends one twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sacristan.observers.notifying.messages import ABANDONED_S, SENT
from sacristan.runs.errors import StoreError
from sacristan.runs.stores.contract import UNSENT, Documents
from sacristan.runs.stores.run import Run

__all__ = ["Messages"]


class Messages:
    """The messages about the runs of a store, by event; see `sacristan.observers.notifying.messages`.

    Every method raises StoreError if the folder or the database cannot be read or written.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def claim(self, run: Run, event: str) -> bool:
        """Claim a message about a run; return False if it was sent, or is being sent."""
        mine = {"state": datetime.now(UTC).isoformat()}
        return self._documents.change("messages", event, lambda now: mine if _is_free(now) else now, run.key)

    def note(self, run: Run, event: str, *, is_sent: bool) -> None:
        """Note whether a receiver took a message that the caller claimed; otherwise it can be claimed again."""
        outcome = {"state": SENT if is_sent else UNSENT}
        is_noted = self._documents.change("messages", event, lambda now: now and outcome, run.key)
        if not is_noted and not self._documents.read("messages", run.key, [event]):
            raise StoreError(f"run {run.id} was removed")

    def is_unsent(self, run: Run, event: str) -> bool:
        """Tell whether a message was tried, but no receiver took it or its sender is gone."""
        now = self._documents.read("messages", run.key, [event]).get(event)
        return now is not None and _is_free(now)


def _is_free(now: Any) -> bool:
    if now is None or now["state"] == UNSENT:
        return True
    abandoned = (datetime.now(UTC) - timedelta(seconds=ABANDONED_S)).isoformat()
    return bool(now["state"] != SENT and now["state"] <= abandoned)
