"""Sweeps of a store, read and never written: what pages show of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from runs.errors import SweepError
from runs.stores.mongo import MongoStore
from runs.stores.store import Store
from runs.sweeps.definition import Definition
from runs.sweeps.extras import needing_extra
from runs.sweeps.home import Home
from runs.sweeps.own_storage import own_storage
from runs.sweeps.place import Place
from runs.sweeps.readable import make_readable
from runs.sweeps.samplers import without_experimental_warnings
from runs.sweeps.spec import Spec
from runs.sweeps.status import Status, Watcher

__all__ = ["SeenSweep", "importances_of", "read_definitions", "read_sweep"]


@dataclasses.dataclass(frozen=True)
class SeenSweep:
    """A sweep as it is now.

    Attributes:
        definition: What it is.
        spec: What it searches.
        status: How it stands, with all of its points.
    """

    definition: Definition
    spec: Spec
    status: Status


def read_definitions(store: Store) -> list[Definition]:
    """Return the sweeps that are kept beside the runs of a store, the newest first, as far as they can be read.

    Raises:
        StoreError: If the store cannot be read.
    """
    found = []
    for id in _place(store).ids():
        with contextlib.suppress(SweepError), _home(store, id) as home:
            found.append(home.definition())
    return sorted(found, key=lambda definition: str(definition.created), reverse=True)


def read_sweep(store: Store, id: str) -> SeenSweep:
    """Return a sweep.

    Raises:
        MissingExtraError: If Optuna is not installed.
        SweepError: If there is no such sweep, or its study cannot be read.
        StoreError: If the store cannot be read.
    """
    with _watching(store, id) as watcher:
        return SeenSweep(watcher.definition, watcher.spec, watcher.look())


def importances_of(store: Store, id: str) -> tuple[dict[str, dict[str, float]], ...]:
    """Return for each objective, by method, the parts that parameters have in its variation; see `Readable`.

    This takes seconds for hundreds of trials.

    Raises:
        MissingExtraError, SweepError, StoreError: As `read_sweep` does.
    """
    with _watching(store, id) as watcher, needing_extra("sweeps", "importances"), without_experimental_warnings():
        return make_readable(watcher.study.optuna, watcher.spec).importances


@contextlib.contextmanager
def _watching(store: Store, id: str) -> Iterator[Watcher]:
    with _home(store, id) as home:
        definition = home.definition()
        if not definition.storage:
            yield Watcher(home, is_read_only=True)
            return
        folder = store.recording_folder
        folders = [Path.cwd(), *((folder, folder.parent) if folder else ())]
        with own_storage(definition, folders) as storage:
            yield Watcher(home, is_read_only=True, storage=storage)


@contextlib.contextmanager
def _home(store: Store, id: str) -> Iterator[Home]:
    with contextlib.closing(_place(store).home(id)) as home:
        yield home


def _place(store: Store) -> Place:
    return Place(store.recording_folder or Path(), store.mongo.destination if isinstance(store, MongoStore) else None)
