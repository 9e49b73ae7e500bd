"""`LeaseFile`: says who writes a record, and that the writer is alive."""

from __future__ import annotations

import time

from observers.record.identity import lease
from observers.record.journal import Journal
from observers.record.locking import RecordLock
from observers.record.schema import LEASE

__all__ = ["LeaseFile"]


class LeaseFile:
    """Writes `lease.json` with each heartbeat.

    Args:
        journal: The journal of the run.
        lock: The lock on the record, held where the file system has locks.
        beat_interval_s: Seconds between two heartbeats.
    """

    def __init__(self, journal: Journal, lock: RecordLock, beat_interval_s: float) -> None:
        self._journal = journal
        self._lock = lock
        self._beat_interval_s = beat_interval_s
        self._due = 0.0

    def renew(self) -> None:
        """Say so once more, but no more often than readers need: heartbeats may be quicker."""
        if time.monotonic() >= self._due:
            self.write()

    def write(self) -> None:
        """Say that this process writes the record, and is alive now."""
        self._journal.write(LEASE, lease(self._beat_interval_s, locked=self._lock.is_held), durable=False)
        self._due = time.monotonic() + 0.5

    def move_to(self, lock: RecordLock) -> None:
        """Hold the lock of another folder."""
        self._lock.release()
        self._lock = lock

    def release(self) -> None:
        """Let others write the record."""
        self._lock.release()
