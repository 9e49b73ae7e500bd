"""The messages of a run that were sent, beside its notes, so that nobody sends one twice.

`notified/EVENT` is the claim on a message, made before the message is sent: of a run and any number of watchers, one
makes it. It holds `sent` once a receiver took the message. If none takes it, the claim is renamed `EVENT.unsent`. A
claim whose process was killed before it sent the message is abandoned after ten minutes, and free again.
"""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from pathlib import Path

from sacristan.observers.record.files import write_once
from sacristan.observers.record.locking import claimed
from sacristan.observers.record.schema import NOTIFIED_FOLDER

__all__ = ["ABANDONED_S", "SENT", "SentMessages", "alert_event", "event_of_session"]

# Seconds after which a claim without an outcome is abandoned: far longer than sending takes, as clocks differ.
ABANDONED_S = 600.0
# Content of the claim on a message that a receiver took.
SENT = "sent"


def event_of_session(event: str, num_sessions: int) -> str:
    """Return the name of an event of a session: a run that was resumed can fail again.

    `num_sessions` counts up to the event; it is 0 or 1 for a run that was not resumed.
    """
    return event if num_sessions < 2 else f"{event}-{num_sessions}"


def alert_event(at: str) -> str:
    """Return the name of an alert as an event."""
    return f"alert-{hashlib.sha256(at.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


class SentMessages:
    """The messages of one run that were sent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / NOTIFIED_FOLDER

    def path(self, event: str) -> Path:
        """Return the file of the claim on a message."""
        return self._folder / event

    def claim(self, event: str) -> bool:
        """Claim a message; return False if it was sent, or is being sent."""
        path = self.path(event)
        if path.exists():
            if not self._is_abandoned(event):
                return False
            with claimed(self._folder):  # so that nobody removes the new claim of another
                if self._is_abandoned(event):
                    path.unlink()
        self._folder.mkdir(exist_ok=True)
        return write_once(path, datetime.now(UTC).isoformat().encode(), durable=False)

    def confirm(self, event: str) -> None:
        """Note that a receiver took a message that the caller claimed."""
        self.path(event).write_text(SENT)

    def release(self, event: str) -> None:
        """Note that no receiver took a message that the caller claimed."""
        self.path(event).replace(self.path(f"{event}.unsent"))

    def is_unsent(self, event: str) -> bool:
        """Tell whether a message was tried, and no receiver took it."""
        if self.path(event).exists():
            return self._is_abandoned(event)
        return self.path(f"{event}.unsent").exists()

    def _is_abandoned(self, event: str) -> bool:
        try:
            is_old = time.time() - self.path(event).stat().st_mtime > ABANDONED_S
            return is_old and self.path(event).read_text() != SENT
        except OSError:  # given back or removed meanwhile
            return False
