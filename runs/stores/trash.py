"""`Trash`: removing runs from a store, now or later, and bringing them back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from sacristan.runs.errors import RunNotFoundError, StoreError
from sacristan.runs.stores.backend import Backend
from sacristan.runs.stores.changes import GRACE_S, Discarded, Removed
from sacristan.runs.stores.notes import Notes
from sacristan.runs.stores.run import Run

__all__ = ["Trash"]


class Trash:
    """The trash of a store; `sacristan.runs.stores.store.Store` documents its operations."""

    def __init__(self, backend: Backend, notes: Notes) -> None:
        self._backend = backend
        self._notes = notes

    def remove(self, runs: Iterable[Run]) -> Removed:
        """See `Store.remove`."""
        removed = Removed(self._for_each(runs, self._backend.remove))
        self._backend.reclaim(removed, GRACE_S)
        return removed

    def discard(self, runs: Iterable[Run]) -> Removed:
        """See `Store.discard`."""
        change = self._notes.signing("moved to the trash")
        return Removed(self._for_each(runs, lambda run: self._backend.discard(run, change)))

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
        where = self._backend.where
        if discarded.uid and self._backend.run_of_uid(discarded.uid) is not None:
            raise StoreError(f"run {discarded.uid} is in {where} already; it stays in the trash")
        id = self._backend.restore(place)
        run = self._backend.by_id([id]).get(id)
        if run is None:
            raise StoreError(f"run {id} came back, and another process has removed it again")
        with contextlib.suppress(StoreError):  # of a damaged record, or of one that may not be written
            self._backend.change_notes(run, self._notes.signing("restored from the trash"))
        return run

    def _find(self, text: str) -> tuple[Discarded, Any]:
        """Return the run in the trash with an id or the beginning of a uid, and its place."""
        listed = self._backend.trash()
        found = [pair for pair in listed if pair[0].id == text][:1]
        found = found or [pair for pair in listed if text and (pair[0].uid or "").startswith(text)]
        if len(found) != 1:
            why = f"{text!r} is the beginning of more than one uid" if found else f"run {text!r} is not"
            raise RunNotFoundError(f"{why} in the trash of {self._backend.where}; list it with: sacristan restore")
        return found[0]

    def _for_each(self, runs: Iterable[Run], remove: Callable[[Run], None]) -> list[str]:
        """Remove runs and return their ids; none is removed if one of them is running."""
        chosen = list({run.id: self._same(run) for run in runs}.values())
        for run in chosen:
            if run.is_living:
                raise StoreError(f"run {run.id} is running; nothing is removed: end its process first")
        tell = self._backend.store.tell
        for number, run in enumerate(chosen):
            tell("removing runs", number, len(chosen))
            remove(run)
        tell("removing runs", len(chosen), len(chosen))
        return [run.id for run in chosen]

    def _same(self, run: Run) -> Run:
        """Return a run as it is now; raise StoreError if its id belongs to another run."""
        now = self._backend.store.get(run.id)
        try:
            is_another = run.uid != now.uid
        except StoreError:  # a damaged record has no other identity than its id
            return now
        if is_another:
            raise StoreError(f"run {run.id} is a different run now; nothing is removed: list the runs again")
        return now
