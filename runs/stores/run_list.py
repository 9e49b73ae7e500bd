"""`RunList`: a list of runs that a notebook shows as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import SupportsIndex, overload

from sacristan.runs.errors import StoreError
from sacristan.runs.query.texts import count_text, list_text
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.settings import telling_settings

__all__ = ["HANDFUL", "RunList", "census"]

# Number of configs to read for the settings that distinguish the runs.
_MAX_READ = 20
# More runs than these are counted by kind before they are changed.
HANDFUL = 5


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
        """Return a table of the first runs as self-contained HTML, below a title."""
        from sacristan.runs.drawing.notebook_html import runs_form  # imports numpy, which lists of runs do without

        listed = [run.listed() for run in self]
        return runs_form(listed, telling_settings(listed[:_MAX_READ]), title)


def census(runs: Sequence[Run]) -> str:
    """Count runs and, if they are more than a handful, say which: `9 runs (8 COMPLETED, 1 FAILED) of digits`."""
    number = count_text(len(runs), "run")
    if len(runs) <= HANDFUL:
        return number
    statuses: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for run in runs:
        try:
            status, name = run.status, run.name
        except StoreError:
            status, name = "unreadable", ""
        statuses[status] += 1
        names[name] += 1
    kinds = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    experiments = list_text(name for name, _ in names.most_common() if name)
    return f"{number} ({kinds}) of {experiments}" if experiments else f"{number} ({kinds})"
