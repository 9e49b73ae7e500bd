"""`InfoFile`: the info of a run, which whoever runs it changes in place, at any time, without saying so."""

from __future__ import annotations

import json
from typing import Any

from observers.file.odd_entries import OddEntries
from observers.record.guarding import Pace
from observers.record.journal import Journal
from observers.record.schema import INFO

__all__ = ["InfoFile"]


class InfoFile:
    """Writes `info.json` when the info has changed.

    Args:
        journal: The journal of the run.
        odd: Makes it plain.
    """

    def __init__(self, journal: Journal, odd: OddEntries) -> None:
        self._journal = journal
        self._odd = odd
        self._info: dict[str, Any] = {}
        self._text = "{}"
        self._pace = Pace()

    def heartbeat(self, info: dict[str, Any]) -> None:
        """Look at the info, but at a large one so rarely that it takes 1 % of the time at most."""
        self._info = info
        if self._pace.is_due:
            self.write()

    def write(self) -> None:
        """Write the info of the last heartbeat as it is now, if it changed."""
        with self._pace:
            document = self._odd.plain("info", self._info)
            text = json.dumps(document, sort_keys=True)
            if text != self._text:
                self._text = text
                self._journal.write(INFO, document)
