"""`Notes`: tags, notes, names and verdicts on runs of a store, with the user who wrote them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sacristan.observers.record.json_text import storable_text
from sacristan.runs.errors import ChangedError, FilterError
from sacristan.runs.stores.authors import MOST_CHANGES, entry_of, with_changes
from sacristan.runs.stores.record import RunStore
from sacristan.runs.stores.run import COLOUR, Run, notes_in

__all__ = ["MOST_LETTERS", "Change", "Notes", "check_tags", "one_line"]

# Characters of a display name.
MOST_LETTERS = 200
# Returns new values of notes by name, given the present ones.
Change = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Notes:
    """The notes on the runs of a store, each change signed by its author; `runs.Store` documents them."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def tag(self, run: Run, add: Iterable[str], remove: Iterable[str]) -> Run:
        """See `Store.tag`."""
        add, remove = list(add), set(remove)
        check_tags(add)
        return self._change(
            run, lambda now: {"tags": {tag: True for tag in (*sorted(now["tags"]), *add) if tag not in remove}}
        )

    def write(self, run: Run, text: str, was: str | None) -> Run:
        """See `Store.write_note`."""

        def written(now: Mapping[str, Any]) -> Mapping[str, Any]:
            if was is not None and now["note"] != was:
                raise ChangedError(f"the note of run {run.id} has changed; read it, and combine both")
            return {"note": text}

        return self._change(run, written)

    def rename(self, run: Run, name: str, was: str | None) -> Run:
        """See `Store.rename`."""
        name = one_line(name)

        def renamed(now: Mapping[str, Any]) -> Mapping[str, Any]:
            present = now.get("display_name", "")
            if was is not None and present != was:
                raise ChangedError(f"run {run.id} has been named {present!r} meanwhile; rename it again")
            return {"display_name": name}

        return self._change(run, renamed)

    def paint(self, run: Run, colour: str) -> Run:
        """See `Store.paint`."""
        if colour and not COLOUR.fullmatch(colour):
            raise FilterError(f"got the colour {colour[:40]!r}, expected one such as #d62728")
        return self._change(run, lambda now: {"display_colour": colour})

    def note_reproduction(self, run: Run, entry: Mapping[str, Any]) -> Run:
        """See `Store.note_reproduction`."""
        return self._change(run, lambda now: {"reproductions": [*now.get("reproductions", ()), dict(entry)]})

    def _change(self, run: Run, change: Change) -> Run:
        """Change the notes on a run as it is now; return it with them."""

        def signed(document: Any) -> Mapping[str, Any]:
            now = notes_in(document or {})
            return {**now, **with_changes(now.get("changes", ()), now, change(now), self._store.author)}

        self._store.backend.documents.change("notes", "", signed, self._store.get(run.id).key)
        changed: Run = self._store.get(run.id)
        return changed

    def sign(self, key: Any, what: str) -> None:
        """Record who did something, such as `moved to the trash`, to the run that the store calls `key`."""

        def signed(document: Any) -> Mapping[str, Any]:
            now = notes_in(document or {})
            return {**now, "changes": [*now.get("changes", ()), entry_of(self._store.author, what)][-MOST_CHANGES:]}

        self._store.backend.documents.change("notes", "", signed, key)


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
