"""`QueueEntry`: where a queued run is written down: in a folder, in a database, or in both."""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from observers.record.journal import Journal
from observers.record.json_text import parse_json
from observers.record.locking import locked
from observers.record.regular_file import read_regular
from observers.record.schema import CLAIMS, RUN
from runs.stores.run import HELD
from runs.work.claims import Claims, FolderClaims, RunClaims, asking

__all__ = ["QueueEntry"]


@dataclasses.dataclass(frozen=True)
class QueueEntry:
    """A run of a queue that no process has begun, or that was cut off. At least one of `folder` and `runs` is given.

    Attributes:
        uid: The run's uid.
        folder: The folder that it is recorded in; None if it has none on this machine.
        runs: The collection of the database that it is delivered to; None if it is delivered to none.
        where: Name of the database in messages.
    """

    uid: str
    folder: Path | None = None
    runs: Any = None
    where: str = ""

    def claims(self, *, is_begun: bool) -> Claims:
        """Return the claims on the run: those of the database if it is delivered to one, so that all workers see them.

        Args:
            is_begun: Whether the run has begun before; an attempt at another one needs the status QUEUED.
        """
        if self.runs is not None:
            return RunClaims(self.runs, self.uid, self.where, is_begun=is_begun)
        assert self.folder is not None
        return FolderClaims(self.folder / CLAIMS)

    def fail(self, lines: list[str]) -> None:
        """Write FAILED into a run that cannot be started, and the lines that say why.

        Raises:
            StoreError: If the database cannot be asked.
        """
        self._change("QUEUED", {"status": "FAILED", "fail_trace": lines}, datetime.now(UTC).replace(tzinfo=None))

    def enqueue(self) -> None:
        """Write QUEUED into a run that is HELD.

        Raises:
            StoreError: If the database cannot be asked.
        """
        self._change(HELD, {"status": "QUEUED"})

    def _change(self, before: str, entries: dict[str, Any], stopped: datetime | None = None) -> None:
        """Change a run that has the status `before`, wherever it is written down."""
        if self.folder is not None:
            as_text = {} if stopped is None else {"stop_time": stopped.isoformat()}
            _change_folder(self.folder, before, entries | as_text)
        if self.runs is not None:
            as_time = {} if stopped is None else {"stop_time": stopped}
            with asking(self.where):
                self.runs.update_one({"uid": self.uid, "status": before}, {"$set": entries | as_time})


def _change_folder(folder: Path, before: str, entries: dict[str, Any]) -> None:
    with contextlib.suppress(BlockingIOError), locked(folder, wait=False):
        run = parse_json(read_regular(folder / RUN))
        if run["status"] == before:
            journal = Journal(folder)
            journal.write(RUN, {**run, **entries})
            journal.close()
