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


class WholeRuns(Notes):
    """The part of a `Store` that adds, removes and restores whole runs."""

    def add(self, staged: StagedRun) -> Copied:
        """Add a run that was prepared in `staging`, unless a run with its uid is there.

        It appears at once, with the next free id. If `add` is killed, a folder has nothing that looks like a run, and a
        database has a run with the status COPYING, which the next `add` of it finishes.

        Args:
            staged: The run.

        Raises:
            StoreError: If the store cannot be written, or the run is damaged.
        """
        with explaining_failure(self.backend.where):
            added = self.backend.add(staged)
        return Copied(self.get(added.id), added.is_new, added.left_out)

    def remove(self, runs: Iterable[Run]) -> Removed:
        """Remove runs for good, and delete contents that no other run uses.

        A run is removed completely or not at all: a killed removal leaves nothing that looks like a whole run, and
        `collect` deletes the rest. Runs share the contents of sources, resources and media. A content is deleted when
        no remaining run names it and nothing touched it for an hour, as a starting run may be about to name it.
        Versions of artifacts have their own names, and stay.

        Other stores keep their copy of a run, and `sacristan sync` does not bring it back.

        Args:
            runs: Runs of this store.

        Raises:
            StoreError: If one of them is running, and then none is removed; or if the store cannot be written.
        """
        removed = Removed(self._remove(runs))
        self.backend.reclaim(removed, GRACE_S)
        return removed

    def discard(self, runs: Iterable[Run]) -> Removed:
        """Move runs to the trash, where `find` and `get` ignore them; `restore` brings them back until `collect`.

        Raises:
            StoreError: If one of them is running, and then none is moved; or if the store cannot be written.
        """
        return Removed(self._remove(runs, to_trash=True))

    def collect(self) -> Removed:
        """Delete the trash, leftovers of killed removals, copies and imports, and contents without a run."""
        removed = Removed()
        self.backend.reclaim(removed, GRACE_S, empties_trash=True)
        return removed

    def trash(self) -> list[Discarded]:
        """Return the runs in the trash, last discarded first."""
        return [discarded for discarded, _ in self.backend.trash()]

    def restore(self, key: str | int) -> Run:
        """Bring a run back from the trash, under its id; in a folder, under the next number if its id is taken.

        Args:
            key: The id that it had, its uid, or an unambiguous beginning of its uid. If several runs had the same id,
                the last discarded one returns.

        Raises:
            RunNotFoundError: If the trash has no such run, or more than one.
            StoreError: If the store cannot be written or has a run with this uid, or another process was faster.
        """
        discarded, place = self._find(str(key).strip())
        if discarded.uid and self.backend.get([discarded.uid]):
            raise StoreError(f"run {discarded.uid} is in {self.backend.where} already; it stays in the trash")
        id = self.backend.restore(place)
        row = self.backend.get([id]).get(id)
        if row is None:
            raise StoreError(f"run {id} came back, and another process has removed it again")
        with contextlib.suppress(StoreError):  # of a damaged record, or of one that may not be written
            self._sign(row.key, "restored from the trash")
        return self.get(row.id)

    def tell(self, task: str, done: int, total: int) -> None:
        """Report to `on_progress` that a `task`, such as `removing runs`, has `done` so much of a `total`."""
        if self.backend.on_progress is not None:
            self.backend.on_progress(task, done, total)

    def _find(self, text: str) -> tuple[Discarded, Any]:
        """Return the run in the trash with an id or the beginning of a uid, and its place."""
        listed = self.backend.trash()
        found = [pair for pair in listed if pair[0].id == text][:1]
        found = found or [pair for pair in listed if text and (pair[0].uid or "").startswith(text)]
        if len(found) != 1:
            why = f"{text!r} is the beginning of more than one uid" if found else f"run {text!r} is not"
            raise RunNotFoundError(f"{why} in the trash of {self.backend.where}; list it with: sacristan restore")
        return found[0]

    def _remove(self, runs: Iterable[Run], *, to_trash: bool = False) -> list[str]:
        """Remove runs and return their ids; none is removed if one of them is running."""
        chosen = list({run.id: self._same(run) for run in runs}.values())
        for run in chosen:
            if run.is_living:
                raise StoreError(f"run {run.id} is running; nothing is removed: end its process first")
        for number, run in enumerate(chosen):
            self.tell("removing runs", number, len(chosen))
            key = self.backend.remove(run, to_trash=to_trash)
            if to_trash:
                with contextlib.suppress(StoreError):  # of a damaged record, or of one that may not be written
                    self._sign(key, TO_TRASH)
        self.tell("removing runs", len(chosen), len(chosen))
        return [run.id for run in chosen]

    def _same(self, run: Run) -> Run:
        """Return a run as it is now; raise StoreError if its id belongs to another run."""
        now = self.get(run.id)
        try:
            is_another = run.uid != now.uid
        except StoreError:  # a damaged record has no other identity than its id
            return now
        if is_another:
            raise StoreError(f"run {run.id} is a different run now; nothing is removed: list the runs again")
        return now
