"""Claims on the runs of a queue: each is taken by one worker alone, of however many, on whatever machines.

The first attempt at a run is claim 1, the next one claim 2, and so on. A claim says who made it, and when, and is never
changed. In a folder, claim 2 is the file `claims/2.json` of the record, which the file system makes once only; in a
database it is the second entry of `claims` in the run's document, which is pushed on the condition that there is one.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from observers.record.atomic_file import write_once
from observers.record.identity import is_alive, lease
from observers.record.journal import Journal
from observers.record.json_text import parse_json
from observers.record.locking import locked
from observers.record.regular_file import read_regular
from observers.record.schema import CLAIMS, RUN
from runs.errors import StoreError
from runs.stores.run import HELD

__all__ = ["Claims", "FolderClaims", "MongoClaims", "is_pending"]

# From its claim to its start a run imports its packages. Another machine's claim that stood for ten times as many
# seconds without a start is taken for one of a worker that was killed.
_START_BOUND_S = 60.0


class Claims(Protocol):
    """The claims on one run."""

    def listed(self) -> list[Mapping[str, Any]]:
        """Return those that were made, the first one first."""

    def add(self, number: int, *, is_begun: bool = False) -> bool:
        """Make the claim of a number; return whether nobody else has made it.

        Args:
            number: One more than there are.
            is_begun: Whether the run has begun before; one that is thought to be queued may have, elsewhere.
        """

    def release(self, number: int) -> None:
        """Take back the claim that this worker made last."""

    def fail(self, reason: list[str]) -> None:
        """Write FAILED into a run that was never started, and the lines that say why."""

    def enqueue(self) -> None:
        """Write QUEUED into a run that is HELD."""


class FolderClaims:
    """Claims in the folder of a run."""

    def __init__(self, folder: Path) -> None:
        self._run = folder
        self._folder = folder / CLAIMS

    def listed(self) -> list[Mapping[str, Any]]:
        """See `Claims`."""
        found: list[Mapping[str, Any]] = []
        with contextlib.suppress(FileNotFoundError):
            while True:
                found.append(_parsed(read_regular(self._folder / f"{len(found) + 1}.json")))
        return found

    def add(self, number: int, *, is_begun: bool = False) -> bool:
        """See `Claims`."""
        try:
            self._folder.mkdir(exist_ok=True)
            return write_once(self._folder / f"{number}.json", json.dumps(_claim()).encode(), durable=False)
        except OSError as error:
            raise StoreError(f"{self._folder} cannot be written ({error.strerror}); check its permissions") from error

    def release(self, number: int) -> None:
        """See `Claims`."""
        (self._folder / f"{number}.json").unlink(missing_ok=True)

    def fail(self, reason: list[str]) -> None:
        """See `Claims`."""
        at = datetime.now(UTC).replace(tzinfo=None).isoformat()
        self._change("QUEUED", {"status": "FAILED", "stop_time": at, "fail_trace": reason})

    def enqueue(self) -> None:
        """See `Claims`."""
        self._change(HELD, {"status": "QUEUED"})

    def _change(self, before: str, entries: Mapping[str, Any]) -> None:
        with contextlib.suppress(BlockingIOError), locked(self._run, wait=False):
            run = parse_json(read_regular(self._run / RUN))
            if run["status"] == before:
                journal = Journal(self._run)
                journal.write(RUN, {**run, **entries})
                journal.close()


class MongoClaims:
    """Claims in the document of a run.

    Args:
        runs: The collection of runs.
        uid: The run's uid.
        where: What the database is called in messages.
    """

    def __init__(self, runs: Any, uid: str, where: str) -> None:
        self._runs = runs
        self._uid = uid
        self._where = where

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        from pymongo.errors import PyMongoError

        from observers.mongo.destination import explain

        try:
            yield
        except PyMongoError as error:
            raise StoreError(
                f"MongoDB at {self._where}, where the run was queued, too, cannot be asked who has taken it: "
                f"{explain(error)}; give its URL: -- -m URL"
            ) from error

    def listed(self) -> list[Mapping[str, Any]]:
        """See `Claims`.

        Raises:
            StoreError: If the database cannot be asked, or has no such run.
        """
        with self._errors():
            document = self._runs.find_one({"uid": self._uid}, {"claims": 1})
        if document is None:
            raise StoreError(f"MongoDB at {self._where} does not have it yet; deliver it: python -m runs sync")
        found = document.get("claims")
        return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []

    def add(self, number: int, *, is_begun: bool = False) -> bool:
        """See `Claims`."""
        before: dict[str, Any] = {"uid": self._uid, "status": {"$ne": "QUEUED"} if is_begun else "QUEUED"}
        before |= {"claims": {"$size": number - 1}} if number > 1 else {"claims.0": {"$exists": False}}
        with self._errors():
            return bool(self._runs.update_one(before, {"$push": {"claims": _claim()}}).modified_count)

    def release(self, number: int) -> None:
        """See `Claims`."""
        with self._errors():
            self._runs.update_one({"uid": self._uid, "claims": {"$size": number}}, {"$pop": {"claims": 1}})

    def fail(self, reason: list[str]) -> None:
        """See `Claims`."""
        change = {"status": "FAILED", "stop_time": datetime.now(UTC).replace(tzinfo=None), "fail_trace": reason}
        with self._errors():
            self._runs.update_one({"uid": self._uid, "status": "QUEUED"}, {"$set": change})

    def enqueue(self) -> None:
        """See `Claims`."""
        with self._errors():
            self._runs.update_one({"uid": self._uid, "status": HELD}, {"$set": {"status": "QUEUED"}})


def is_pending(claim: Mapping[str, Any], began: float | None) -> bool:
    """Tell whether whoever made a claim may still be about to start the run.

    Args:
        claim: The last one.
        began: When the run last began, in seconds since 1970; None if it never did.
    """
    at = claim.get("heartbeat")
    if began is not None and isinstance(at, int | float) and at <= began:
        return False  # it was started, and has ended since
    return is_alive(claim)


def _claim() -> dict[str, Any]:
    return lease(_START_BOUND_S) | {"heartbeat": time.time()}


def _parsed(data: bytes | str) -> Mapping[str, Any]:
    """Return a claim; one that is damaged tells nothing, and holds nobody up."""
    with contextlib.suppress(ValueError):
        found = parse_json(data)
        if isinstance(found, dict):
            return found
    return {}
