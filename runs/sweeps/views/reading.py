"""Sweeps of a store, read and never written: what pages show of them."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

from runs.errors import SweepError
from runs.stores.mongo.store import MongoStore
from runs.stores.store import Store
from runs.sweeps.spec.definition import Definition
from runs.sweeps.spec.spec import Spec
from runs.sweeps.study.extras import needing_extra
from runs.sweeps.study.home import Home
from runs.sweeps.study.own_storage import own_storage
from runs.sweeps.study.place import Place
from runs.sweeps.study.samplers import without_experimental_warnings
from runs.sweeps.views.readable import make_readable
from runs.sweeps.views.status import Status, Watcher

__all__ = ["SeenSweep", "SweepReader", "importances_of", "read_definitions"]

# Sweeps of which what was read is kept.
_MAX_WATCHED = 8


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


class SweepReader:
    """Looks at sweeps again and again: after the first look at one, what is new in its study is all that is read.

    It serves several threads, one after the other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The one that was looked at last comes last.
        self._watchers: dict[str, Watcher] = {}

    def read(self, store: Store, id: str) -> SeenSweep:
        """Return a sweep as it is now.

        Args:
            store: The store that it is kept beside, the same each time.
            id: The sweep's.

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
            if watcher is None or watcher.definition != definition:  # it was made anew, or tries more points
                watcher = stack.enter_context(_watching(store, home, definition))
            seen = SeenSweep(watcher.definition, watcher.spec, watcher.look())
            if not definition.storage:  # a storage of its own is open for one look
                stack.pop_all()
                self._watchers[id] = watcher
            if len(self._watchers) > _MAX_WATCHED:
                self._watchers.pop(next(iter(self._watchers))).home.close()
            return seen

    def close(self) -> None:
        """Let go of what is open."""
        with self._lock:
            while self._watchers:
                self._watchers.popitem()[1].home.close()


def importances_of(store: Store, id: str) -> tuple[dict[str, dict[str, float]], ...]:
    """Return for each objective, by method, the parts that parameters have in its variation; see `Readable`.

    This takes seconds for hundreds of trials.

    Raises:
        MissingExtraError, SweepError, StoreError: As `SweepReader.read` does.
    """
    # Of a study that nobody else looks at meanwhile, as this takes long.
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
    return Place(store.recording_folder or Path(), store.mongo.destination if isinstance(store, MongoStore) else None)
