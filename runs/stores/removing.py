"""Removing runs, and reclaiming the contents that no run uses any more.

    removed = remove(store, [store.get("3")])
    removed = collect(store)                  # what crashes in between left

A run goes at once, or not at all: whatever is killed in between leaves no half of a run that looks like a whole one,
and `collect` takes the rest away. Contents of sources, resources and media are shared: one goes when no run that is
left names it and nothing touched it for an hour, as a run that starts now may be about to name it. Versions of
artifacts have names of their own, and stay.

A run is removed from one store. Another store that it is in keeps it, and `runs sync` does not bring it back.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from observers.record.identity import is_alive
from runs.errors import StoreError
from runs.stores.run import Run
from runs.stores.store import Store

__all__ = ["GRACE_S", "Removed", "collect", "is_living", "remove"]

# What was touched so lately may be about to be named by a run that starts.
GRACE_S = 3600.0
# Stock Sacred keeps no lease, and a beat of its every ten seconds.
_BEATS_S = 600.0


@dataclasses.dataclass
class Removed:
    """What was taken away, and what was not.

    Attributes:
        runs: Ids of the runs.
        num_contents: Contents of files that were reclaimed.
        num_bytes: Their length.
        num_young: Contents that no run names, kept because they were touched within the last hour.
        unreadable: Ids of runs whose record cannot be read, so that they may name any content: none is reclaimed.
    """

    runs: list[str] = dataclasses.field(default_factory=list)
    num_contents: int = 0
    num_bytes: int = 0
    num_young: int = 0
    unreadable: list[str] = dataclasses.field(default_factory=list)


def is_living(run: Run) -> bool:
    """Tell whether a run's process may still write it."""
    lease = run.lease
    try:
        if run.status != "RUNNING":
            return False
    except StoreError:  # its record cannot be read
        return lease is not None and is_alive(lease)
    if lease is not None:
        return True  # a status of RUNNING without a living process reads as DEAD
    try:
        last = datetime.fromisoformat(run.document.get("heartbeat") or run.document["start_time"])
    except (KeyError, TypeError, ValueError):
        return False
    if last.tzinfo is None:
        last = last.replace(tzinfo=UTC)
    return time.time() - last.timestamp() < _BEATS_S


def remove(store: Store, runs: Iterable[Run]) -> Removed:
    """Remove runs, and reclaim the contents that no other run uses.

    Raises:
        StoreError: If one of them is running, and then none is removed; or if the store cannot be written.
    """
    chosen = list({run.id: store.get(run.id) for run in runs}.values())
    for run in chosen:
        if is_living(run):
            raise StoreError(f"run {run.id} is running; nothing is removed: end its process first")
    removed = Removed()
    for number, run in enumerate(chosen):
        store.tell("removing runs", number, len(chosen))
        store.remove_run(run)
        removed.runs.append(run.id)
    store.tell("removing runs", len(chosen), len(chosen))
    store.reclaim(removed, GRACE_S)
    return removed


def collect(store: Store) -> Removed:
    """Take away what removals, copies and imports left when they were killed, and contents that no run uses.

    Raises:
        StoreError: If the store cannot be read or written.
    """
    removed = Removed()
    store.reclaim(removed, GRACE_S)
    return removed
