"""Claims: who runs which attempt at a task, so that at most one process does, on however many machines.

A task is a run of a queue or a point of a sweep. An attempt is claimed once, by whoever is first: in a folder its file
is linked once, in a database its entry is added on a condition. A claim names its owner, whose lease says whether it
lives.

A process that is about to begin a run asks the owner of its claim. The owner notes the lease of the process, then
checks that nobody has claimed a later attempt. A successor claims the next attempt, then waits for the processes noted
on earlier ones. So either the process is refused, or its successor waits for it.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.observers.record.files import read_regular, replacing, write_once
from sacristan.observers.record.identity import is_alive, lease
from sacristan.observers.record.json_text import parse_json
from sacristan.runs.errors import StoreError, naming_os_errors
from sacristan.runs.query.flattening import mappings_in

if TYPE_CHECKING:
    from sacristan.observers.mongo.layout import Collections

__all__ = ["Claim", "Claims", "FolderClaims", "RunClaims", "asking", "is_pending"]

# A run imports its packages between its claim and its start. A claim from another machine that stood for ten times as
# many seconds without a start belongs to a worker that was killed.
_START_BOUND_S = 60.0


@dataclasses.dataclass(frozen=True)
class Claim:
    """The claim of one attempt.

    Attributes:
        attempt: Its number.
        owner: Name of the agent of a sweep, which keeps its lease elsewhere; empty for a worker of a queue.
        lease: Lease of the worker of a queue, as of the claim; empty for an agent, or if the claim is damaged.
        process: Lease of the process that last asked to begin this attempt; None before that.
    """

    attempt: int
    owner: str = ""
    lease: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    process: Mapping[str, Any] | None = None


class Claims(abc.ABC):
    """The claims on the attempts at one task. Attempts follow each other without gaps."""

    @abc.abstractmethod
    def listed(self) -> list[Claim]:
        """Return the claims, first attempt first."""

    @abc.abstractmethod
    def add(self, attempt: int) -> bool:
        """Claim an attempt, the number after the last claim, once and for all; False if another owner was quicker."""

    @abc.abstractmethod
    def release(self, attempt: int) -> None:
        """Take back this owner's claim, the last one, so that others can make it: one whose run has not begun."""

    @abc.abstractmethod
    def _note_process(self, attempt: int, process: Mapping[str, Any]) -> None:
        """Note the lease of a process in the claim of an attempt."""

    def is_last(self, attempt: int) -> bool:
        """Tell whether a claimed attempt is still the last one; False if another owner took this one for dead."""
        claims = self.listed()
        return bool(claims) and claims[-1].attempt == attempt

    def begin(self, attempt: int, process: Mapping[str, Any]) -> bool:
        """Note the lease of a process that asks to begin an attempt of this owner, and return whether it may.

        If it may not, another owner has claimed a later attempt, and the process must record nothing.
        """
        self._note_process(attempt, process)
        return self.is_last(attempt)

    def earlier_processes(self, attempt: int) -> list[Mapping[str, Any]]:
        """Return the leases of processes that asked to begin attempts before this one.

        The run of this attempt, which this owner has claimed, must not start while one of them is alive.
        """
        return [claim.process for claim in self.listed() if claim.attempt < attempt and claim.process is not None]


class FolderClaims(Claims):
    """Claims in files: `claims/2.json` and `claims/2.lease` of a run, `claims/000017.2` and so on of a sweep's point.

    Args:
        stem: Begins the names of the files of this task.
        owner: Name that claims are made in; empty writes the lease of this process instead.
    """

    def __init__(self, folder: Path, *, first: int = 1, stem: str = "", suffix: str = ".json", owner: str = "") -> None:
        self._folder, self._first, self._stem, self._suffix, self._owner = folder, first, stem, suffix, owner

    def listed(self) -> list[Claim]:
        claims: list[Claim] = []
        reading = naming_os_errors(f"{self._folder} cannot be read", "; check its permissions")
        with reading, contextlib.suppress(FileNotFoundError):  # of the claim after the last
            while True:
                attempt = self._first + len(claims)
                content = read_regular(self._path(attempt))
                claims.append(_claim(attempt, content, self._process(attempt)))
        return claims

    def add(self, attempt: int) -> bool:
        content = self._owner or json.dumps(_own_lease())
        with self._writing():
            self._folder.mkdir(exist_ok=True)
            return write_once(self._path(attempt), content.encode(), durable=False)

    def release(self, attempt: int) -> None:
        with self._writing():
            for path in (self._path(attempt), self._lease_path(attempt)):
                path.unlink(missing_ok=True)

    def _note_process(self, attempt: int, process: Mapping[str, Any]) -> None:
        with self._writing(), replacing(self._lease_path(attempt), durable=False) as stream:
            stream.write(json.dumps(process).encode())

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return naming_os_errors(f"{self._folder} cannot be written", "; check its permissions")

    def _process(self, attempt: int) -> Mapping[str, Any] | None:
        with contextlib.suppress(OSError, ValueError):  # a power cut that damages it ended the process as well
            process = parse_json(read_regular(self._lease_path(attempt)))
            return process if isinstance(process, dict) else None
        return None

    def _path(self, attempt: int) -> Path:
        return self._folder / f"{self._stem}{attempt}{self._suffix}"

    def _lease_path(self, attempt: int) -> Path:
        return self._folder / f"{self._stem}{attempt}.lease"


class RunClaims(Claims):
    """Claims in the document of a queued run: the first attempt is the first entry of its list `claims`.

    Args:
        is_begun: Whether the run has begun before; an attempt at another one needs the status QUEUED.
    """

    def __init__(self, collections: Collections, uid: str, where: str, *, is_begun: bool = False) -> None:
        self._collections, self._uid, self._where, self._is_begun = collections, uid, where, is_begun

    def listed(self) -> list[Claim]:
        with asking(self._where):
            document = self._collections.sent.runs.find_one({"uid": self._uid}, {"claims": 1})
        if document is None:
            raise StoreError(f"MongoDB at {self._where} does not have it yet; deliver it: sacristan sync")
        entries = enumerate(mappings_in(document.get("claims")), 1)
        return [Claim(number, lease=entry, process=entry.get("process")) for number, entry in entries]

    def add(self, attempt: int) -> bool:
        condition: dict[str, Any] = {"uid": self._uid, "status": {"$ne": "QUEUED"} if self._is_begun else "QUEUED"}
        condition |= {"claims": {"$size": attempt - 1}} if attempt > 1 else {"claims.0": {"$exists": False}}
        change = {"$push": {"claims": _own_lease()}}
        with asking(self._where):
            return bool(self._collections.confirmed.runs.update_one(condition, change).modified_count)

    def release(self, attempt: int) -> None:
        condition = {"uid": self._uid, "claims": {"$size": attempt}}
        with asking(self._where):
            self._collections.confirmed.runs.update_one(condition, {"$pop": {"claims": 1}})

    def _note_process(self, attempt: int, process: Mapping[str, Any]) -> None:
        name = f"claims.{attempt - 1}"
        condition, change = {"uid": self._uid, name: {"$exists": True}}, {"$set": {f"{name}.process": dict(process)}}
        with asking(self._where):
            self._collections.confirmed.runs.update_one(condition, change)


@contextlib.contextmanager
def asking(where: str) -> Iterator[None]:
    """Turn errors of the database that a queued run is delivered to into a StoreError; `where` names it in messages."""
    from pymongo.errors import PyMongoError

    from sacristan.observers.mongo.destination import explain

    try:
        yield
    except PyMongoError as error:
        raise StoreError(
            f"MongoDB at {where}, where the run was queued, too, cannot be asked who has taken it: {explain(error)}; "
            "give its URL: -- -m URL"
        ) from error


def is_pending(claim: Claim, began: float | None) -> bool:
    """Tell whether the worker that made a claim, or the process that it started, may still begin the run.

    `began` is when the run last began, in seconds since 1970; None if it never did.
    """
    at = claim.lease.get("heartbeat")
    if began is not None and isinstance(at, int | float) and at <= began:
        return False  # the claim led to that start, and the run has ended since
    return is_alive(claim.lease) or (claim.process is not None and is_alive(claim.process))


def _own_lease() -> dict[str, Any]:
    return lease(_START_BOUND_S, is_anonymous=True) | {"heartbeat": time.time()}


def _claim(attempt: int, content: bytes, process: Mapping[str, Any] | None) -> Claim:
    """Return the claim of a file: a lease or a name. A damaged one has neither, and keeps nobody from the task."""
    if content.startswith(b"{"):
        with contextlib.suppress(ValueError):
            return Claim(attempt, lease=parse_json(content), process=process)
    return Claim(attempt, content.decode(errors="replace"), process=process)
