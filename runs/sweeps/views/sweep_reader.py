"""Sweeps beside the runs of a store, read and never written: for the board, and for messages about their end."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sacristan.runs.errors import MissingExtraError, SweepError, needing_extra
from sacristan.runs.query.names import SWEEP
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.store import Store
from sacristan.runs.sweeps.spec.definition import Definition
from sacristan.runs.sweeps.spec.spec import Spec
from sacristan.runs.sweeps.study.home import Home, Place, own_storage
from sacristan.runs.sweeps.study.samplers import without_experimental_warnings
from sacristan.runs.sweeps.views.status import Status, Watcher, status_lines
from sacristan.runs.sweeps.views.study_view import make_study_view
from sacristan.runs.work.watching import Notice, RecentRuns

__all__ = ["Digests", "SeenSweep", "SweepReader", "importances_of", "read_definitions"]

# Sweeps whose studies are kept open.
_MAX_WATCHED = 8


@dataclasses.dataclass(frozen=True)
class SeenSweep:
    """A sweep as it was read at one moment."""

    definition: Definition
    spec: Spec
    status: Status


def read_definitions(store: Store) -> tuple[list[Definition], dict[str, str]]:
    """Return the definitions of the sweeps beside a store's runs, the newest first, and the errors of others, by id."""
    definitions, problems = [], {}
    for id in _place(store).ids():
        try:
            with _home(store, id) as home:
                definitions.append(home.definition())
        except SweepError as error:
            problems[id] = str(error)
    return sorted(definitions, key=lambda definition: str(definition.created), reverse=True), problems


class SweepReader:
    """Reads sweeps repeatedly, and only news of their studies; serves one of several threads at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The sweep that was read last is last.
        self._watchers: dict[str, Watcher] = {}

    def read(self, store: Store, id: str) -> SeenSweep:
        """Read a sweep as it is now; the store is the same in each call."""
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
    """Return the importances of a `StudyView`, which takes seconds for hundreds of trials."""
    # In a study of its own, so that nobody waits for it.
    with (
        _home(store, id) as home,
        _watching(store, home, home.definition()) as watcher,
        needing_extra("sweeps", "importances"),
        without_experimental_warnings(),
    ):
        return make_study_view(watcher.study.optuna, watcher.spec).importances


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
    folder = store.recording_folder
    return Place(Path(), store.backend.address) if folder is None else Place(folder)


# ---------------------------------------------------------------------- digests


class Digests:
    """Digests of the sweeps beside the runs of a store; `tell` takes a line about a sweep that cannot be read."""

    def __init__(self, store: Store, tell: Callable[[str], None]) -> None:
        self._store, self._tell = store, tell
        self._reader = SweepReader()
        self._problems: set[str] = set()

    def notices(self, recent: RecentRuns, known: Iterable[tuple[str, str]] = ()) -> list[Notice]:
        """Return a digest of each sweep that is done, once for each last run; keys in `known` are left out."""
        known = set(known)
        by_sweep: dict[str, list[Run]] = {}
        for run in recent.runs:
            if isinstance(sweep := run.get(SWEEP), str):
                by_sweep.setdefault(sweep, []).append(run)
        notices = []
        for id, runs in by_sweep.items():
            last = max(runs, key=lambda run: run.uid or "")
            is_open = any(run.status in ("RUNNING", "QUEUED") for run in runs)
            if is_open or not any(map(recent.ended, runs)) or (last.uid or last.id, "sweep_done") in known:
                continue
            text = self._text(id)
            if text is not None:
                notices.append(Notice(last, "sweep_done", text, "success"))
        return notices

    def _text(self, id: str) -> str | None:
        """Return the digest of a sweep; None if it is not done or cannot be read."""
        try:
            seen = self._reader.read(self._store, id)
        except (MissingExtraError, SweepError) as error:
            if str(error) not in self._problems:
                self._problems.add(str(error))
                self._tell(f"sweep {id}: {error}")
            return None
        status = seen.status
        is_over = status.is_done or (status.is_stopped and not status.running)
        return "\n".join(status_lines(status, seen.spec.objective_names)) if is_over else None

    def close(self) -> None:
        """Close all studies."""
        self._reader.close()
