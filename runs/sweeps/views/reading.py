"""Sweeps beside the runs of a store, read and never written, for the pages of the board."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

from runs.errors import SweepError, needing_extra
from runs.stores.mongo.backend import MongoBackend
from runs.stores.store import Store
from runs.sweeps.spec.definition import Definition
from runs.sweeps.spec.spec import Spec
from runs.sweeps.study.home import Home
from runs.sweeps.study.own_storage import own_storage
from runs.sweeps.study.place import Place
from runs.sweeps.study.samplers import without_experimental_warnings
from runs.sweeps.views.readable import make_readable
from runs.sweeps.views.status import Status, Watcher

__all__ = ["SeenSweep", "SweepReader", "importances_of", "read_definitions"]

# Sweeps whose studies are kept open.
_MAX_WATCHED = 8


@dataclasses.dataclass(frozen=True)
class SeenSweep:
    """A sweep as it was read at one moment.

    Attributes:
        definition: Its definition.
        spec: Its spec.
        status: Its state, with all of its points.
    """

    definition: Definition
    spec: Spec
    status: Status


def read_definitions(store: Store) -> tuple[list[Definition], dict[str, str]]:
    """Return the definitions of the sweeps beside the runs of a store, the newest first, and of others the errors.

    Args:
        store: A folder or a database of runs.

    Returns:
        The definitions; by the ids of sweeps that cannot be read, why not.

    Raises:
        StoreError: If the store cannot be read.
    """
    definitions, problems = [], {}
    for id in _place(store).ids():
        try:
            with _home(store, id) as home:
                definitions.append(home.definition())
        except SweepError as error:
            problems[id] = str(error)
    return sorted(definitions, key=lambda definition: str(definition.created), reverse=True), problems


class SweepReader:
    """Reads sweeps repeatedly; after the first time, only news of a sweep's study is read.

    Several threads may use it; it serves one at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The sweep that was read last is last.
        self._watchers: dict[str, Watcher] = {}

    def read(self, store: Store, id: str) -> SeenSweep:
        """Read a sweep as it is now.

        Args:
            store: The store beside which it is kept, the same each time.
            id: The sweep's id.

        Raises:
            MissingExtraError: If Optuna is not installed.
            SweepError: If there is no such sweep, or its study cannot be read.
            StoreError: If the store cannot be read.
        """
        with self._lock, contextlib.ExitStack() as stack:
            watcher = self._watchers.pop(id, None)
            home = _place(store).home(id) if watcher is None else watcher.home
            stack.callback(home.close)
            definition = home.definition()
            if watcher is None or watcher.definition != definition:  # it was created again, or has a higher limit
                watcher = stack.enter_context(_watching(store, home, definition))
            seen = SeenSweep(watcher.definition, watcher.spec, watcher.look())
            if not definition.storage:  # a storage of the user's own is opened each time
                stack.pop_all()
                self._watchers[id] = watcher
            if len(self._watchers) > _MAX_WATCHED:
                self._watchers.pop(next(iter(self._watchers))).home.close()
            return seen

    def close(self) -> None:
        """Close all studies."""
        with self._lock:
            while self._watchers:
                self._watchers.popitem()[1].home.close()


def importances_of(store: Store, id: str) -> tuple[dict[str, dict[str, float]], ...]:
    """Return for each objective, by method, the share of each parameter in its variation; see `Readable`.

    This takes seconds for hundreds of trials.

    Args:
        store: The store beside which the sweep is kept.
        id: The sweep's id.

    Raises:
        MissingExtraError, SweepError, StoreError: As in `SweepReader.read`.
    """
    # In a study of its own, so that nobody waits for it.
    with (
        _home(store, id) as home,
        _watching(store, home, home.definition()) as watcher,
        needing_extra("sweeps", "importances"),
        without_experimental_warnings(),
    ):
        return make_readable(watcher.study.optuna, watcher.spec).importances


@contextlib.contextmanager
def _watching(store: Store, home: Home, definition: Definition) -> Iterator[Watcher]:
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
    destination = store.backend.mongo.destination if isinstance(store.backend, MongoBackend) else None
    return Place(store.recording_folder or Path(), destination)
