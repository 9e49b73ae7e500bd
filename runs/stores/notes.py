"""Tags and display names of runs, as people may write them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from observers.record.storable import storable_text
from runs.errors import FilterError

__all__ = ["MOST_LETTERS", "check_tags", "one_line"]

# Characters of a display name.
MOST_LETTERS = 200


def one_line(name: str) -> str:
    """Return a display name with single spaces instead of white space and control characters.

    Args:
        name: The name as typed.

    Raises:
        FilterError: If it is too long.
    """
    name = " ".join("".join(c if c.isprintable() else " " for c in storable_text(name)).split())
    if len(name) > MOST_LETTERS:
        raise FilterError(
            f"got a name of {len(name)} characters, expected at most {MOST_LETTERS}; write the rest as a note"
        )
    return name


def check_tags(tags: Iterable[str]) -> None:
    """Check new tags.

    Args:
        tags: The tags.

    Raises:
        FilterError: If one has other characters than letters, digits, `-` and `_`.
    """
    for tag in tags:
        if not re.fullmatch(r"[\w-]+", tag):
            raise FilterError(f"got the tag {tag!r}, expected letters, digits, - and _ only")
