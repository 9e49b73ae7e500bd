"""Copying complete runs from any store into any other; a second copy changes nothing.

A copy keeps the run's uid. A run of stock Sacred has none; it gets one that is computed from its record, so that
copying it twice makes one copy.
"""

from __future__ import annotations

from sacristan.runs.errors import StoreError
from sacristan.runs.stores.changes import Copied
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.store import Store
from sacristan.runs.transfer.unloading import unload

__all__ = ["Copied", "copy"]


def copy(run: Run, store: Store, *, stays_queued: bool = False) -> Copied:
    """Copy a complete run into another store, unless a run with its uid is there.

    Args:
        run: A run that has ended, of any store; it is copied as it is now.
        store: The store to copy to; `open_store(where, create=True)` creates the folder of a new one.
        stays_queued: Whether workers of that store may start a QUEUED run; by default it becomes HELD.

    Returns:
        The run there, whether it is new, and what could not be copied.

    Raises:
        StoreError: If the run is running, its record cannot be read, or the store cannot be written. Then nothing was
            copied; a database may have a run with the status COPYING, which the next copy finishes.

    Example:
        with open_store("my_runs") as store, open_store("copies", create=True) as copies:
            copied = copy(store.get("latest"), copies)
            print(copied.run.id, copied.is_new, copied.left_out)
    """
    run = run.store.get(run.id)
    if run.is_living:
        raise StoreError(f"run {run.id} is running; copy it when it has ended")
    if not run.is_whole:
        raise StoreError(f"run {run.id} is incomplete: its status is {run.status}; repeat the interrupted command")
    with store.staging() as base:
        return store.add(unload(run, base, stays_queued=stays_queued))
