"""`WholeRuns`: adding runs to a store, removing them, now or later, and bringing them back."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from typing import Any

from sacristan.runs.errors import RunNotFoundError, StoreError
from sacristan.runs.stores.authors import TO_TRASH
from sacristan.runs.stores.changes import GRACE_S, Discarded, Removed, StagedRun, explaining_failure
from sacristan.runs.stores.notes import Notes
from sacristan.runs.stores.record import RunStore
from sacristan.runs.stores.run import Run

__all__ = ["Copied", "WholeRuns"]


@dataclasses.dataclass(frozen=True)
class Copied:
    """A run that was copied or imported.

    Attributes:
        run: The run in the store that received it.
        is_new: Whether the store lacked it before; an existing run stays unchanged.
        left_out: A sentence for each part of the run that could not be copied.
    """

    run: Run
    is_new: bool
    left_out: tuple[str, ...] = ()


class WholeRuns:
    """What happens to whole runs of a store; `sacristan.runs.stores.store.Store` documents the operations."""

    def __init__(self, store: RunStore, notes: Notes) -> None:
        self._store, self._backend = store, store.backend
        self._notes = notes

    def add(self, staged: StagedRun) -> Copied:
        """See `Store.add`."""
        with explaining_failure(self._backend.where):
            added = self._backend.add(staged)
        return Copied(self._store.get(added.id), added.is_new, added.left_out)

    def remove(self, runs: Iterable[Run]) -> Removed:
        """See `Store.remove`."""
        removed = Removed(self._remove(runs))
        self._backend.reclaim(removed, GRACE_S)
        return removed

    def discard(self, runs: Iterable[Run]) -> Removed:
        """See `Store.discard`."""
        return Removed(self._remove(runs, to_trash=True))

    def collect(self) -> Removed:
        """See `Store.collect`."""
        removed = Removed()
        self._backend.reclaim(removed, GRACE_S, empties_trash=True)
        return removed

    def listed(self) -> list[Discarded]:
        """See `Store.trash`."""
        return [discarded for discarded, _ in self._backend.trash()]

    def restore(self, key: str | int) -> Run:
        """See `Store.restore`."""
        discarded, place = self._find(str(key).strip())
        if discarded.uid and self._backend.get([discarded.uid]):
            raise StoreError(f"run {discarded.uid} is in {self._backend.where} already; it stays in the trash")
        id = self._backend.restore(place)
        row = self._backend.get([id]).get(id)
        if row is None:
            raise StoreError(f"run {id} came back, and another process has removed it again")
        with contextlib.suppress(StoreError):  # of a damaged record, or of one that may not be written
            self._notes.sign(row.key, "restored from the trash")
        return Run(self._store, row.id, row.values, row.key)

    def _find(self, text: str) -> tuple[Discarded, Any]:
        """Return the run in the trash with an id or the beginning of a uid, and its place."""
        listed = self._backend.trash()
        found = [pair for pair in listed if pair[0].id == text][:1]
        found = found or [pair for pair in listed if text and (pair[0].uid or "").startswith(text)]
        if len(found) != 1:
            why = f"{text!r} is the beginning of more than one uid" if found else f"run {text!r} is not"
            raise RunNotFoundError(f"{why} in the trash of {self._backend.where}; list it with: sacristan restore")
        return found[0]

    def _remove(self, runs: Iterable[Run], *, to_trash: bool = False) -> list[str]:
        """Remove runs and return their ids; none is removed if one of them is running."""
        chosen = list({run.id: self._same(run) for run in runs}.values())
        for run in chosen:
            if run.is_living:
                raise StoreError(f"run {run.id} is running; nothing is removed: end its process first")
        for number, run in enumerate(chosen):
            self._store.tell("removing runs", number, len(chosen))
            key = self._backend.remove(run, to_trash=to_trash)
            if to_trash:
                with contextlib.suppress(StoreError):  # of a damaged record, or of one that may not be written
                    self._notes.sign(key, TO_TRASH)
        self._store.tell("removing runs", len(chosen), len(chosen))
        return [run.id for run in chosen]

    def _same(self, run: Run) -> Run:
        """Return a run as it is now; raise StoreError if its id belongs to another run."""
        now: Run = self._store.get(run.id)
        try:
            is_another = run.uid != now.uid
        except StoreError:  # a damaged record has no other identity than its id
            return now
        if is_another:
            raise StoreError(f"run {run.id} is a different run now; nothing is removed: list the runs again")
        return now
