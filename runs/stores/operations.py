"""Operations of a store on its runs: notes on them, adding, removing and restoring them, each with an author."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sacristan.observers.record.json_text import storable_text
from sacristan.observers.record.redaction import typed_command
from sacristan.runs.errors import ChangedError, FilterError, RunNotFoundError, StoreError
from sacristan.runs.stores.changes import (
    GRACE_S,
    MOST_CHANGES,
    TO_TRASH,
    Author,
    Discarded,
    Removed,
    StagedRun,
    entry_of,
    explaining_failure,
    with_changes,
)
from sacristan.runs.stores.contract import Backend
from sacristan.runs.stores.run import COLOUR, Run, notes_in

# Characters of a display name.
MOST_LETTERS = 200
# Returns new values of notes by name, given the present ones.
Change = Callable[[Mapping[str, Any]], Mapping[str, Any]]


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


class Operations(abc.ABC):
    """The part of a `Store` that changes its runs; each change is signed by its author."""

    backend: Backend
    author: Author

    @abc.abstractmethod
    def get(self, key: str | int) -> Run: ...

    # ------------------------------------------------------------------ notes

    def tag(self, run: Run, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Run:
        """Attach tags to a run, and take others away; return the run as it is now.

        A tag is the field `tags.NAME`: `find("tags.best=True")`.

        Args:
            run: The run.
            add: Tags to attach, of letters, digits, `-` and `_`.
            remove: Tags to take away.

        Raises:
            FilterError: If a tag has other characters.
        """
        add, remove = list(add), set(remove)
        check_tags(add)
        return self._change(
            run, lambda now: {"tags": {tag: True for tag in (*sorted(now["tags"]), *add) if tag not in remove}}
        )

    def write_note(self, run: Run, text: str, was: str | None = None) -> Run:
        """Replace the note on a run; return the run as it is now.

        Args:
            run: The run.
            text: The new note.
            was: The note to replace; by default any.

        Raises:
            ChangedError: If the present note differs from `was`; it stays.
        """

        def written(now: Mapping[str, Any]) -> Mapping[str, Any]:
            if was is not None and now["note"] != was:
                raise ChangedError(f"the note of run {run.id} has changed; read it, and combine both")
            return {"note": text}

        return self._change(run, written)

    def rename(self, run: Run, name: str, was: str | None = None) -> Run:
        """Give a run a display name; return the run as it is now. Its ids stay.

        Args:
            run: The run.
            name: The name, of at most 200 characters on one line; an empty one removes it.
            was: The name to replace; by default any.

        Raises:
            FilterError: If the name is too long.
            ChangedError: If the present name differs from `was`; it stays.
        """
        name = one_line(name)

        def renamed(now: Mapping[str, Any]) -> Mapping[str, Any]:
            present = now.get("display_name", "")
            if was is not None and present != was:
                raise ChangedError(f"run {run.id} has been named {present!r} meanwhile; rename it again")
            return {"display_name": name}

        return self._change(run, renamed)

    def paint(self, run: Run, colour: str) -> Run:
        """Choose the colour of a run's curves on the board; return the run as it is now.

        Args:
            run: The run.
            colour: Red, green and blue, such as `#d62728`; an empty text removes the choice.

        Raises:
            FilterError: If it is no such colour.
        """
        if colour and not COLOUR.fullmatch(colour):
            raise FilterError(f"got the colour {colour[:40]!r}, expected one such as #d62728")
        return self._change(run, lambda now: {"display_colour": colour})

    def note_reproduction(self, run: Run, entry: Mapping[str, Any]) -> Run:
        """Note that a run was reproduced, or is a reproduction; return the run as it is now.

        Args:
            run: The run.
            entry: The verdict, as `sacristan.runs.rerun.reproducing` makes it.
        """
        return self._change(run, lambda now: {"reproductions": [*now.get("reproductions", ()), dict(entry)]})

    def _change(self, run: Run, change: Change) -> Run:
        """Change the notes on a run as it is now; return it with them."""

        def signed(document: Any) -> Mapping[str, Any]:
            now = notes_in(document or {})
            return {**now, **with_changes(now.get("changes", ()), now, change(now), self.author)}

        self.backend.documents.change("notes", "", signed, self.get(run.id).key)
        return self.get(run.id)

    def _sign(self, key: Any, what: str) -> None:
        """Record who did something, such as `moved to the trash`, to the run that the store calls `key`."""

        def signed(document: Any) -> Mapping[str, Any]:
            now = notes_in(document or {})
            return {**now, "changes": [*now.get("changes", ()), entry_of(self.author, what)][-MOST_CHANGES:]}

        self.backend.documents.change("notes", "", signed, key)

    # ------------------------------------------------------------------ whole runs

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
        matching = [pair for pair in listed if pair[0].id == text][:1]
        matching = matching or [pair for pair in listed if text and (pair[0].uid or "").startswith(text)]
        if len(matching) != 1:
            where = self.backend.where
            why = f"{text!r} is the beginning of more than one uid" if matching else f"run {text!r} is not"
            raise RunNotFoundError(f"{why} in the trash of {where}; list it with: {typed_command(where, 'restore')}")
        return matching[0]

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


def one_line(name: str) -> str:
    """Return a display name with single spaces for white space and control characters; reject a long one."""
    name = " ".join("".join(c if c.isprintable() else " " for c in storable_text(name)).split())
    if len(name) > MOST_LETTERS:
        raise FilterError(
            f"got a name of {len(name)} characters, expected at most {MOST_LETTERS}; write the rest as a note"
        )
    return name


def check_tags(tags: Iterable[str]) -> None:
    """Reject tags with other characters than letters, digits, `-` and `_`."""
    for tag in tags:
        if not re.fullmatch(r"[\w-]+", tag):
            raise FilterError(f"got the tag {tag!r}, expected letters, digits, - and _ only")
