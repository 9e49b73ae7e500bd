"""Runs of a sweep that ended while their database was away: counted, and delivered before the sweep ends."""

from __future__ import annotations

import contextlib
from pathlib import Path

from observers.mongo.delivery import noted_delivery
from observers.mongo.destination import read_destination
from runs.stores.opening import open_store
from runs.sweeps.study.place import Place
from runs.transfer.syncing import deliveries

__all__ = ["deliver", "undelivered_lines"]


def deliver(place: Place, id: str) -> None:
    """Deliver the ended runs of a sweep that are on this machine, as far as the database takes them.

    Args:
        place: Where the sweep is kept; without a database there is nothing to deliver.
        id: The sweep's id.

    Raises:
        StoreError: If the folder of runs cannot be read.
    """
    if place.destination is not None:
        label = place.destination.label
        left = [folder for folder, where in _undelivered(place.base, id).items() if where == label]
        for _ in deliveries(place.base, place.destination.url, only=left):
            pass  # what is left is counted afterwards


def undelivered_lines(place: Place, id: str) -> list[str]:
    """Return a line with the number of a sweep's runs that only this machine has, and how to deliver them.

    Args:
        place: Where the sweep is kept, with the folder of its runs.
        id: The sweep's id.

    Returns:
        One line, or none if all ended runs are delivered.
    """
    found = _undelivered(place.base, id)
    if not found:
        return []
    runs = f"{len(found)} runs are" if len(found) > 1 else "1 run is"
    where = ", ".join(dict.fromkeys(found.values()))
    return [f"{runs} not delivered to MongoDB at {where}; deliver: python -m runs sync {place.base}"]


def _undelivered(base: Path, id: str) -> dict[Path, str]:
    """Return the folders of a sweep's runs that have ended and are not delivered, and to where they are to be."""
    if not base.is_dir():
        return {}
    found = {}
    with open_store(base) as store:
        folders = [run.folder for run in store.find([("meta.sweep.id", "=", id)]) if not run.is_living]
    for folder in filter(None, folders):
        with contextlib.suppress(OSError, ValueError, TypeError):
            destination = read_destination(folder)
            if destination is not None and noted_delivery(folder) is None:
                found[folder] = destination.label
    return found
