"""Notes on a run, made after it ended: tags, a text, and verdicts on its reproductions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from runs.errors import ChangedError, FilterError
from runs.stores.run import Run

__all__ = ["check_tags", "with_reproduction", "with_tags", "with_text"]


def check_tags(tags: Collection[str]) -> None:
    """Check new tags.

    Raises:
        FilterError: If one has other characters than letters, digits, `-` and `_`.
    """
    for tag in tags:
        if not re.fullmatch(r"[\w-]+", tag):
            raise FilterError(f"got the tag {tag!r}, expected letters, digits, - and _ only")


def with_tags(run: Run, add: Collection[str], remove: Collection[str]) -> Mapping[str, Any]:
    """Return the notes that attach tags to a run, and then take some away.

    Args:
        run: The run as it is now.
        add: Checked tags to attach.
        remove: Tags to take away.
    """
    return {"tags": {tag: True for tag in (*run.tags, *add) if tag not in remove}}


def with_text(run: Run, text: str, was: str | None) -> Mapping[str, Any]:
    """Return the notes that replace the text on a run.

    Args:
        run: The run as it is now.
        text: The new text.
        was: The text to replace; None for any.

    Raises:
        ChangedError: If the present text differs from `was`.
    """
    if was is not None and run.note != was:
        raise ChangedError(f"the note of run {run.id} has changed; read it, and combine both")
    return {"note": text}


def with_reproduction(run: Run, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the notes that add a verdict to a run.

    Args:
        run: The run as it is now.
        entry: The verdict, as `runs.rerun.reproducing` makes it.
    """
    return {"reproductions": [*run.reproductions, dict(entry)]}
