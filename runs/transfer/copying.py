"""Copying runs from any store into any other, with all that they hold; again without effect.

    copied = copy(store.get("3"), open_target("mongodb://host/lab"))

A copy keeps the run's uid. A run of stock Sacred, which has none, gets one that is made from its record, so that
copying it twice makes one.
"""

from __future__ import annotations

from runs.errors import StoreError
from runs.stores.adding import Copied
from runs.stores.run import Run
from runs.stores.store import Store
from runs.transfer.unloading import unload

__all__ = ["Copied", "copy"]


def copy(run: Run, store: Store) -> Copied:
    """Copy a run into `store`, unless a run of its uid is there.

    Args:
        run: Of any store; read anew, as it is now.
        store: Where to; see `runs.stores.opening.open_target`.

    Returns:
        The run there, whether it is new, and what could not be taken over.

    Raises:
        StoreError: If it is running, its record cannot be read, or the store cannot be written; then nothing of it is
            there, or in a database a run that says COPYING, which the next copy finishes.
    """
    run = run.store.get(run.id)
    if run.is_living:
        raise StoreError(f"run {run.id} is running; copy it when it has ended")
    if not run.is_whole:
        raise StoreError(f"run {run.id} is not whole: it says {run.status}; repeat what was interrupted")
    with store.staging() as base:
        return store.add(unload(run, base))
