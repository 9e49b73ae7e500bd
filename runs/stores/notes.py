"""`Notes`: tags, notes, names and verdicts on runs of a store, with the user who wrote them."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sacristan.observers.record.json_text import storable_text
from sacristan.runs.errors import ChangedError, FilterError
from sacristan.runs.stores.authors import MOST_CHANGES, Author, entry_of, with_changes
from sacristan.runs.stores.contract import Backend
from sacristan.runs.stores.run import COLOUR, Run, notes_in

__all__ = ["MOST_LETTERS", "Change", "Notes", "check_tags", "one_line"]

# Characters of a display name.
MOST_LETTERS = 200
# Returns new values of notes by name, given the present ones.
Change = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Notes(abc.ABC):
    """The part of a `Store` that writes notes on its runs; each change is signed by its author."""

    backend: Backend
    author: Author

    @abc.abstractmethod
    def get(self, key: str | int) -> Run: ...

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
