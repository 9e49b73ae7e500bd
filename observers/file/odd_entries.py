"""`OddEntries`: what a run notes as its record stores it, and a word on each entry that cannot be stored as it is."""

from __future__ import annotations

import logging
from typing import Any

from observers.file.sacred_form import plain
from observers.record.journal import Journal
from observers.record.json_text import MAX_NOTED_LEVELS

__all__ = ["OddEntries"]

_log = logging.getLogger(__name__)

# Entries that are named in one message, and in all.
_SHOWN, _MOST = 10, 1000


class OddEntries:
    """Makes the entries of one run plain, and says once of each that becomes text.

    Args:
        journal: The journal of the run.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._said: set[str] = set()

    def plain(self, part: str, value: Any, *, num_levels: int = MAX_NOTED_LEVELS) -> Any:
        """Return a part of the record as JSON holds it; see `sacred_form.plain`."""
        odd: dict[str, str] = {}
        found = plain(value, odd, num_levels=num_levels)
        named = {f"{part}.{name}" if name and part else part or name: reason for name, reason in odd.items()}
        new = [name for name in named if name not in self._said] if len(self._said) < _MOST else []
        if new:
            self._said.update(new)
            more = f", and {len(new) - _SHOWN} more" if len(new) > _SHOWN else ""
            texts = ", ".join(f"{name} ({named[name]})" for name in new[:_SHOWN])
            _log.warning("%s: noted as text, because JSON cannot hold it: %s%s", self._journal.folder, texts, more)
        return found
