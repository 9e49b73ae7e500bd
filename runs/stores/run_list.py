"""`RunList`: a list of runs that a notebook shows as a table."""

from __future__ import annotations

from typing import SupportsIndex, overload

from runs.stores.run import Run
from runs.stores.settings import telling_settings

__all__ = ["RunList"]

# Number of configs to read for the settings that distinguish the runs.
_MAX_READ = 20


class RunList(list[Run]):
    """A list of runs; a notebook shows it as a table, with the curves inline."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> RunList: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Run | RunList:
        """Return one run, or a slice as a `RunList`."""
        found = super().__getitem__(index)
        return RunList(found) if isinstance(found, list) else found

    def _repr_html_(self) -> str:
        """Return the list as notebooks show it."""
        return self.as_html()

    def as_html(self, title: str = "") -> str:
        """Return a table of the first runs as self-contained HTML.

        Args:
            title: A text above the table.
        """
        from runs.drawing.forms import runs_form  # imports numpy, which lists of runs do without

        listed = [run.listed() for run in self]
        return runs_form(listed, telling_settings(listed[:_MAX_READ]), title)
