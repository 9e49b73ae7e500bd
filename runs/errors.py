"""Errors of reading past runs; each message is one sentence that ends in what to do next.

RunsError             the root
├── StoreError        a folder or database cannot be read or written
├── ServerError       the embedded MongoDB does not start
├── FilterError       a filter, a sort or a column makes no sense
├── ArchiveError      a file is no archive of runs
├── RunNotFoundError  an id stands for no run, or for more than one
├── ComparisonError   runs cannot be grouped or compared as asked
├── LaunchError       a recorded run cannot be started again
└── PlotError         there is nothing to draw
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
    """The root of all errors of this package; the message is a sentence for the user, with what to do next."""


class StoreError(RunsError):
    """A folder or database of runs cannot be read or written."""


class ServerError(RunsError):
    """The embedded MongoDB does not start."""


class FilterError(RunsError):
    """A filter, a sort or a column makes no sense."""


class ArchiveError(RunsError):
    """A file is no archive of runs, or not a whole one."""


class RunNotFoundError(RunsError):
    """An id, or the beginning of a uid, stands for no run, or for more than one."""


class ComparisonError(RunsError):
    """Runs cannot be grouped or compared as asked."""


class LaunchError(RunsError):
    """A recorded run cannot be started again, for example because its script or its states are not there."""


class PlotError(RunsError):
    """There is nothing to draw, or no way to draw it where it was asked for."""
