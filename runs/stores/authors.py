"""Changes of a run with their authors and times, kept with its tags and note."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from sacristan.observers.record.identity import user_name
from sacristan.observers.record.json_text import storable_text
from sacristan.runs.query.flattening import mappings_in

__all__ = ["MOST_CHANGES", "TO_TRASH", "Author", "discarder", "entry_of", "with_changes"]

# The change that moves a run to the trash.
TO_TRASH = "moved to the trash"
# Changes that a run keeps; the oldest go first.
MOST_CHANGES = 100
_MAX_TEXT = 200
# Machines write these.
_NO_CHANGE = frozenset(("changes", "reproductions"))


@dataclasses.dataclass(frozen=True)
class Author:
    """The user who changes runs.

    Attributes:
        via: How the name is known: `board` for the user who started the board, `token` or `proxy`; empty for the user
            of the operating system whose process it is.
    """

    name: str
    via: str = ""

    @classmethod
    def of_process(cls) -> Author:
        """Return the user of this process."""
        return cls(user_name() or "user")


def entry_of(author: Author, what: str) -> dict[str, Any]:
    """Return the entry for a change by an author; a long text is cut."""
    text = storable_text(what)
    text = text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
    now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
    return {"time": now, "by": storable_text(author.name)[:_MAX_TEXT], "via": author.via, "what": text}


def discarder(changes: Any) -> str:
    """Return who moved a run to the trash last, by its recorded changes; empty if they do not tell."""
    names = [change.get("by") for change in mappings_in(changes) if change.get("what") == TO_TRASH]
    return str(names[-1] or "") if names else ""


def with_changes(
    changes: Iterable[Mapping[str, Any]], before: Mapping[str, Any], after: Mapping[str, Any], author: Author
) -> dict[str, Any]:
    """Return the new notes on a run, with an entry appended to `changes` for each that differs."""
    new = [entry_of(author, text) for name in after if (text := _change_of(name, before.get(name), after[name]))]
    return {**after, "changes": [*map(dict, changes), *new][-MOST_CHANGES:]} if new else dict(after)


def _change_of(name: str, before: Any, after: Any) -> str:
    """Describe the change of one value; empty if there is none to keep."""
    if name in _NO_CHANGE or before == after or not (before or after):
        return ""
    if isinstance(before or {}, Mapping) and isinstance(after, Mapping):
        signs = [f"+{one}" for one in after if one not in (before or {})]
        signs += [f"-{one}" for one in before or {} if one not in after]
        return f"{name}: {' '.join(signs)}" if signs else ""
    label = name.replace("_", " ")
    return f"{label}: {after}" if after else f"{label} removed"
