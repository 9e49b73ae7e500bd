"""`Store`: all runs of a folder or of a database, behind one API."""

from __future__ import annotations

import abc
import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from observers.errors import ArtifactError
from runs.errors import ChangedError, FilterError, RunNotFoundError, StoreError
from runs.stores.adding import Copied, StagedRun, staging_folder
from runs.stores.catalog import NEWEST_FIRST, Catalog
from runs.stores.removing import GRACE_S, Discarded, Removed
from runs.stores.run import Run

__all__ = ["NEWEST_FIRST", "Store"]


class Store(Catalog):
    """All runs of one place, a folder or a database: found and read (`Catalog`), tagged, removed and added.

    A store serves one thread. It holds an index or a connection until it is closed, by `close` or by a `with` block.
    Every method raises StoreError if the folder or the database cannot be read or written.

    Example:
        with open_store("my_runs") as store:
            for run in store.find(["optimizer.lr<1e-3", "duration>0.1"], sort="-val/accuracy.max", limit=10):
                print(run.id, run["val/accuracy.max"])
            run = store.tag(store.get("latest"), ["baseline"])
            print(store.frame("tags.baseline=True", columns=["optimizer.lr", "result"]))
    """

    # ------------------------------------------------------------------ notes

    def tag(self, run: Run, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Run:
        """Attach words to a run, and take others away; return the run as it is now.

        A tag is found as the field `tags.WORD`: `find("tags.best=True")`.

        Raises:
            FilterError: If a tag is no word of letters, digits, `-` and `_`.
            StoreError: If the store cannot be written.
        """
        add, remove = list(add), set(remove)
        for tag in add:
            if not re.fullmatch(r"[\w-]+", tag):
                raise FilterError(f"got the tag {tag!r}, expected letters, digits, - and _ only")

        def tags(now: Run) -> Mapping[str, Any]:
            return {"tags": {tag: True for tag in (*now.tags, *add) if tag not in remove}}

        return self._note(run, tags)

    def write_note(self, run: Run, text: str, was: str | None = None) -> Run:
        """Replace the note on a run; return the run as it is now.

        Args:
            run: The run.
            text: The new note.
            was: The note that is replaced; without it, whatever there is.

        Raises:
            ChangedError: If the note is not what it `was`, and then it stays.
            StoreError: If the store cannot be written.
        """

        def note(now: Run) -> Mapping[str, Any]:
            if was is not None and now.note != was:
                raise ChangedError(f"the note of run {run.id} has changed; read it, and combine both")
            return {"note": text}

        return self._note(run, note)

    def note_reproduction(self, run: Run, entry: Mapping[str, Any]) -> Run:
        """Note that a run was reproduced, or is a reproduction; return the run as it is now.

        Args:
            run: The run.
            entry: Of the form that `runs.rerun.reproducing` makes.

        Raises:
            StoreError: If the store cannot be written.
        """
        return self._note(run, lambda now: {"reproductions": [*now.reproductions, dict(entry)]})

    def _note(self, run: Run, change: Callable[[Run], Mapping[str, Any]]) -> Run:
        self.get(run.id)._change_notes(change)
        return self.get(run.id)

    # ------------------------------------------------------------------ removing

    def remove(self, runs: Iterable[Run]) -> Removed:
        """Remove runs, and reclaim the contents that no other run uses.

        A run goes at once, or not at all: whatever is killed in between leaves no half of a run that looks like a
        whole one, and `collect` takes the rest away. Contents of sources, resources and media are shared: one goes
        when no run that is left names it and nothing touched it for an hour, as a run that starts now may be about to
        name it. Versions of artifacts have names of their own, and stay.

        A run is removed from this store alone. Another store that it is in keeps it, and `runs sync` does not bring it
        back.

        Raises:
            StoreError: If one of them is running, and then none is removed; or if the store cannot be written.
        """
        removed = Removed(self._for_each(runs, lambda run: run._remove()))
        self._reclaim(removed, GRACE_S)
        return removed

    def discard(self, runs: Iterable[Run]) -> Removed:
        """Move runs into the trash, where nothing finds them; `restore` brings them back until `collect` removes them.

        Raises:
            StoreError: If one of them is running, and then none is moved; or if the store cannot be written.
        """
        return Removed(self._for_each(runs, lambda run: run._discard()))

    def _for_each(self, runs: Iterable[Run], remove: Callable[[Run], None]) -> list[str]:
        chosen = list({run.id: self._same(run) for run in runs}.values())
        for run in chosen:
            if run.is_living:
                raise StoreError(f"run {run.id} is running; nothing is removed: end its process first")
        for number, run in enumerate(chosen):
            self.tell("removing runs", number, len(chosen))
            remove(run)
        self.tell("removing runs", len(chosen), len(chosen))
        return [run.id for run in chosen]

    def trash(self) -> list[Discarded]:
        """Return the runs in the trash, the one discarded last first.

        Raises:
            StoreError: If the store cannot be read.
        """
        return [one for one, _ in self._trash()]

    def _same(self, run: Run) -> Run:
        """Return a run as it is now.

        Raises:
            StoreError: If its id is that of another run by now.
        """
        now = self.get(run.id)
        try:
            is_another = run.uid != now.uid
        except StoreError:  # of a damaged record the id is all there is
            return now
        if is_another:
            raise StoreError(f"run {run.id} is a different run now; nothing is removed: list the runs again")
        return now

    @abc.abstractmethod
    def _trash(self) -> list[tuple[Discarded, Any]]:
        """Return the runs in the trash, each with what `_restore` brings it back by, whatever others do meanwhile."""

    def restore(self, key: str | int) -> Run:
        """Bring a run back out of the trash, under its id, or in a folder under the next number if that is taken.

        Args:
            key: The id that it had, its uid, or an unambiguous beginning of its uid. Of runs that had the same id the
                one discarded last is meant.

        Raises:
            RunNotFoundError: If none is in the trash, or more than one is meant.
            StoreError: If the store cannot be written, a run of its uid is there, or another process took it first.
        """
        text, there = str(key).strip(), self._trash()
        found = [pair for pair in there if pair[0].id == text][:1] or [
            pair for pair in there if text and pair[0].uid and pair[0].uid.startswith(text)
        ]
        if len(found) != 1:
            what = f"{text!r} is the beginning of more than one uid" if found else f"run {text!r} is not"
            raise RunNotFoundError(f"{what} in the trash of {self.where}; list it with: python -m runs restore")
        [(one, place)] = found
        if one.uid and self._run_of_uid(one.uid) is not None:
            raise StoreError(f"run {one.uid} is in {self.where} already; it stays in the trash")
        id = self._restore(place)
        run = self._run_of_id(id)
        if run is None:
            raise StoreError(f"run {id} came back, and another process has removed it again")
        return run

    @abc.abstractmethod
    def _restore(self, place: Any) -> str:
        """Bring back the run that `_trash` has with that place, and return its id.

        Raises:
            StoreError: If it no longer exists.
        """

    def collect(self) -> Removed:
        """Remove what is in the trash, what removals, copies and imports left when killed, and contents without a run.

        Raises:
            StoreError: If the store cannot be read or written.
        """
        removed = Removed()
        self._reclaim(removed, GRACE_S, empties_trash=True)
        return removed

    @abc.abstractmethod
    def _reclaim(self, removed: Removed, grace_s: float, *, empties_trash: bool = False) -> None:
        """Take away what is of no use any more and was not touched for `grace_s` seconds; add it to `removed`."""

    # ------------------------------------------------------------------ adding

    @property
    def recording_folder(self) -> Path | None:
        """The folder that a process of this machine records below, for its runs to be in this store; None if none is.

        Into a store without one, runs come from elsewhere, by `add`.
        """
        return None

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        """Give an empty folder to make runs ready in for `add`, where that takes no copies; it goes in the end.

        Raises:
            StoreError: If it cannot be made.
        """
        return staging_folder()

    def add(self, staged: StagedRun) -> Copied:
        """Add a run that was made ready in `staging`, unless a run of its uid is there.

        It comes at once, with the next free id. An `add` that is killed leaves nothing in a folder that is taken for a
        run, and in a database a run that says COPYING, which the next `add` of it finishes.

        Raises:
            StoreError: If the store cannot be written, or the run is damaged.
        """
        try:
            return self._add(staged)
        except ArtifactError as error:
            raise StoreError(str(error)) from error
        except OSError as error:
            raise StoreError(f"{self.where} cannot be written ({error.strerror or error})") from error
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise StoreError(f"the record of the run is damaged ({type(error).__name__}: {error})") from error

    @abc.abstractmethod
    def _add(self, staged: StagedRun) -> Copied:
        """Do what `add` does; errors of the disk and of damaged records are turned into StoreError there."""

    # ------------------------------------------------------------------ being open

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of what is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
