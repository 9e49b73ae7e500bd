"""Runs of a sweep that ended while their database was away: counted, and delivered before the sweep ends."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sacristan.observers.mongo.delivery import noted_delivery
from sacristan.observers.mongo.destination import read_destination
from sacristan.runs.stores.opening import open_store
from sacristan.runs.sweeps.study.place import Place
from sacristan.runs.transfer.syncing import deliveries

__all__ = ["deliver", "undelivered_lines"]


def deliver(place: Place, id: str) -> None:
    """Deliver the ended runs of a sweep on this machine, as far as the database, if there is one, takes them."""
    if place.destination is not None:
        label = place.destination.label
        left = [folder for folder, where in _undelivered(place.base, id).items() if where == label]
        for _ in deliveries(place.base, place.destination.url, only=left):
            pass  # what is left is counted afterwards


def undelivered_lines(place: Place, id: str) -> list[str]:
    """Return a line with the number of ended runs that only this machine has, and how to deliver them; none if zero."""
    found = _undelivered(place.base, id)
    if not found:
        return []
    runs = f"{len(found)} runs are" if len(found) > 1 else "1 run is"
    where = ", ".join(dict.fromkeys(found.values()))
    return [f"{runs} not delivered to MongoDB at {where}; deliver: sacristan sync {place.base}"]


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
