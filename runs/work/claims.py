"""Claims: who runs which attempt at a task, so that at most one process does, on however many machines.

A task is a run of a queue or a point of a sweep, and its claims are documents of a store. An attempt is claimed once,
by whoever is first. A claim names its owner, whose lease says whether it lives.

A process that is about to begin a run asks the owner of its claim. The owner notes the lease of the process, then
checks that nobody has claimed a later attempt. A successor claims the next attempt, then waits for the processes noted
on earlier ones. So either the process is refused, or its successor waits for it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sacristan.observers.record.identity import is_alive, lease
from sacristan.runs.errors import StoreError
from sacristan.runs.stores.contract import Documents

__all__ = ["Claim", "Claims", "is_pending", "last_claims", "point_claims", "run_claims"]

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


@dataclasses.dataclass(frozen=True)
class Claims:
    """The claims on the attempts at one task. Attempts follow each other without gaps.

    Attributes:
        kind: The kind of the documents, of which `task` is the owner.
        point: The number of a sweep's point; None for a run.
        entry: Returns what this owner writes when it claims an attempt.
    """

    documents: Documents
    kind: str
    task: Any
    entry: Callable[[int], dict[str, Any]]
    point: int | None = None

    def listed(self) -> list[Claim]:
        """Return the claims, first attempt first."""
        where = None if self.point is None else _of_points(self.task, [self.point])
        found = self.documents.read(self.kind, self.task, where=where)
        return sorted((_claim(name, document) for name, document in found.items()), key=lambda claim: claim.attempt)

    def add(self, attempt: int) -> bool:
        """Claim an attempt, the number after the last claim, once and for all; False if another owner was quicker."""
        mine = self.entry(attempt)
        is_mine = False

        def claim(now: Mapping[str, Any] | None) -> Mapping[str, Any]:
            nonlocal is_mine
            is_mine = now == mine  # as after a first try whose answer was lost
            return mine if now is None else now

        return self._change(attempt, claim) or is_mine

    def release(self, attempt: int) -> None:
        """Take back this owner's claim, the last one, so that others can make it: one whose run has not begun."""
        self._change(attempt, lambda _: None)

    def renew(self, attempt: int) -> None:
        """Note that the worker of a queue that claimed an attempt lives."""
        self._change(attempt, lambda now: now and {**now, "heartbeat": time.time()})

    def is_last(self, attempt: int) -> bool:
        """Tell whether a claimed attempt is still the last one; False if another owner took this one for dead."""
        claims = self.listed()
        return bool(claims) and claims[-1].attempt == attempt

    def begin(self, attempt: int, process: Mapping[str, Any]) -> bool:
        """Note the lease of a process that asks to begin an attempt of this owner, and return whether it may.

        If it may not, another owner has claimed a later attempt, and the process must record nothing.
        """
        entry = "process" if self.point is None else "lease"

        def noted(now: Mapping[str, Any] | None) -> Mapping[str, Any]:
            if now is None:
                raise StoreError(f"the claim on attempt {attempt} is gone, and perhaps the run")
            return {**now, entry: dict(process)}

        self._change(attempt, noted)
        return self.is_last(attempt)

    def earlier_processes(self, attempt: int) -> list[Mapping[str, Any]]:
        """Return the leases of processes that asked to begin attempts before this one.

        The run of this attempt, which this owner has claimed, must not start while one of them is alive.
        """
        return [claim.process for claim in self.listed() if claim.attempt < attempt and claim.process is not None]

    def _change(self, attempt: int, change: Callable[[Any], Mapping[str, Any] | None]) -> bool:
        name = str(attempt) if self.point is None else f"{self.point}/{attempt}"
        return self.documents.change(self.kind, name, change, self.task)


def run_claims(documents: Documents, key: Any) -> Claims:
    """Return the claims on a queued run, whose first attempt is 1; `key` is that of the run."""
    return Claims(documents, "claims", key, lambda _: lease(_START_BOUND_S, is_anonymous=True))


def point_claims(documents: Documents, sweep: str, number: int, agent: str) -> Claims:
    """Return the claims on a point of a sweep, whose first attempt is 0; `agent` is empty to only read them."""
    entry = {"sweep": sweep, "trial": number, "agent": agent}
    return Claims(documents, "sweep_claims", sweep, lambda attempt: {**entry, "attempt": attempt}, number)


def last_claims(documents: Documents, sweep: str, numbers: Collection[int]) -> dict[int, Claim]:
    """Return the last claims on some points, without unclaimed ones, asking once for all of them."""
    found = documents.read("sweep_claims", sweep, where=_of_points(sweep, numbers))
    claims = sorted(((document["trial"], _claim(name, document)) for name, document in found.items()), key=_attempt)
    return dict(claims)


def _attempt(claim: tuple[int, Claim]) -> int:
    return claim[1].attempt


def _of_points(sweep: str, numbers: Collection[int]) -> dict[str, Collection[Any]]:
    return {"sweep": [sweep], "trial": numbers}


def _claim(name: str, document: Mapping[str, Any]) -> Claim:
    point, _, attempt = name.rpartition("/")
    if point:
        return Claim(int(attempt), document["agent"], process=document.get("lease"))
    lease_of_worker = {name: value for name, value in document.items() if name not in ("process", "agent")}
    return Claim(int(attempt), document.get("agent", ""), lease_of_worker, document.get("process"))


def is_pending(claim: Claim, began: float | None) -> bool:
    """Tell whether the worker that made a claim, or the process that it started, may still begin the run.

    `began` is when the run last began, in seconds since 1970; None if it never did.
    """
    at = claim.lease.get("heartbeat")
    if began is not None and isinstance(at, int | float) and at <= began:
        return False  # the claim led to that start, and the run has ended since
    return is_alive(claim.lease) or (claim.process is not None and is_alive(claim.process))
