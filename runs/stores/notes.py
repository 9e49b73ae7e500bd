"""`Notes`: tags, notes, names and verdicts on runs of a store, with the user who wrote them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sacristan.observers.record.json_text import storable_text
from sacristan.runs.errors import ChangedError, FilterError
from sacristan.runs.stores.authors import MOST_CHANGES, entry_of, with_changes
from sacristan.runs.stores.backend import Backend
from sacristan.runs.stores.run import Run

__all__ = ["MOST_LETTERS", "Change", "Notes", "check_tags", "one_line"]

# Characters of a display name.
MOST_LETTERS = 200
# A function that returns new values of what is noted on a run, by name.
Change = Callable[[Run], Mapping[str, Any]]


class Notes:
    """The notes on the runs of a store, each change signed by its author; `runs.Store` documents them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def tag(self, run: Run, add: Iterable[str], remove: Iterable[str]) -> Run:
        """See `Store.tag`."""
        add, remove = list(add), set(remove)
        check_tags(add)
        return self._change(run, lambda now: {"tags": {tag: True for tag in (*now.tags, *add) if tag not in remove}})

    def write(self, run: Run, text: str, was: str | None) -> Run:
        """See `Store.write_note`."""

        def written(now: Run) -> Mapping[str, Any]:
            if was is not None and now.note != was:
                raise ChangedError(f"the note of run {run.id} has changed; read it, and combine both")
            return {"note": text}

        return self._change(run, written)

    def rename(self, run: Run, name: str, was: str | None) -> Run:
        """See `Store.rename`."""
        name = one_line(name)

        def renamed(now: Run) -> Mapping[str, Any]:
            if was is not None and now.display_name != was:
                raise ChangedError(f"run {run.id} has been named {now.display_name!r} meanwhile; rename it again")
            return {"display_name": name}

        return self._change(run, renamed)

    def note_reproduction(self, run: Run, entry: Mapping[str, Any]) -> Run:
        """See `Store.note_reproduction`."""
        return self._change(run, lambda now: {"reproductions": [*now.reproductions, dict(entry)]})

    def _change(self, run: Run, change: Change) -> Run:
        """Change the notes on a run as it is now; return it with them."""
        store = self._backend.store

        def signed(now: Run) -> Mapping[str, Any]:
            return with_changes(now.changes, now.notes(), change(now), store.author)

        self._backend.change_notes(store.get(run.id), signed)
        return store.get(run.id)

    def signing(self, what: str) -> Change:
        """Return a change of the notes that records who did something, such as `moved to the trash`, to a run."""
        author = self._backend.store.author
        return lambda now: {"changes": [*now.changes, entry_of(author, what)][-MOST_CHANGES:]}


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
