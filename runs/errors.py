"""What can go wrong when past runs are looked at.

RunsError           one clear sentence for the terminal
├── StoreError      a folder or database cannot be read or written
├── ServerError     the embedded MongoDB does not start
├── FilterError     a filter makes no sense
├── ArchiveError      a file is no archive of runs
├── RunNotFoundError  no run, or more than one, is meant
├── ComparisonError   the runs cannot be compared as was asked
├── LaunchError       a recorded run cannot be started again
└── PlotError         nothing can be drawn
"""

from __future__ import annotations

__all__ = [
    "ArchiveError",
    "ComparisonError",
    "FilterError",
    "LaunchError",
    "PlotError",
    "RunNotFoundError",
    "RunsError",
    "ServerError",
    "StoreError",
]


class RunsError(Exception):
    """The root: a message for the person at the terminal, saying what to do next."""


class StoreError(RunsError):
    """A folder or database of runs cannot be read or written."""


class ServerError(RunsError):
    """The embedded MongoDB does not start."""


class FilterError(RunsError):
    """A filter, a sort or a column makes no sense."""


class ArchiveError(RunsError):
    """A file is no archive of runs, or not a whole one."""


class RunNotFoundError(RunsError):
    """No run is meant by an id, or more than one."""


class ComparisonError(RunsError):
    """The runs cannot be grouped or compared as was asked."""


class LaunchError(RunsError):
    """A recorded run cannot be started again: its script or its sources are not there."""


class PlotError(RunsError):
    """Nothing can be drawn, or not there."""
