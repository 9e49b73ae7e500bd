"""The errors of the package. Each says in one sentence what was got, what was expected, and what to do next.

RunsError                 the root: catch it for all that follows
├── ArchiveError          a file is no archive of runs, or not a whole one
├── ComparisonError       runs cannot be grouped or compared as was asked; a ValueError
├── FilterError           a filter, a sort, a column or a number of points is invalid; a ValueError
├── ForeignError          a file or folder holds no runs of a known tracker, or one of them cannot be read
├── LaunchError           a recorded run cannot be started again
├── MissingExtraError     an optional dependency is not installed; an ImportError
├── PlotError             there is nothing to draw, or no way to draw it
├── ReportError           a block of a report, `{{...}}`, is invalid; a ValueError
├── RunNotFoundError      an id stands for no run, or for more than one; a LookupError
│   └── DiscardedError    the run is in the trash
├── ServerError           the embedded MongoDB does not start
├── StoreError            a folder or database of runs, or a record in it, cannot be read or written
│   ├── ChangedError      what is to be replaced was changed meanwhile
│   ├── DamagedError      a content is not what its record says
│   ├── RemovedError      a run was removed after it was found
│   ├── StoreAwayError    the folder is not there, or no server answers; it may come back
│   └── UnsearchableError a file cannot be unpacked, or is too large to be
└── SweepError            a sweep is missing, or its spec is invalid; a ValueError

What observers, the disk or the database raise is turned into one of these, with the original as its cause: a damaged
record or an artifact that is gone is a StoreError, whatever found it out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sacristan.configs.packages import missing_package

__all__ = [
    "ArchiveError",
    "ChangedError",
    "ComparisonError",
    "DamagedError",
    "DiscardedError",
    "FilterError",
    "ForeignError",
    "LaunchError",
    "MissingExtraError",
    "PlotError",
    "RemovedError",
    "ReportError",
    "RunNotFoundError",
    "RunsError",
    "ServerError",
    "StoreAwayError",
    "StoreError",
    "SweepError",
    "UnsearchableError",
    "naming_os_errors",
    "needing_extra",
]


class RunsError(Exception):
    """The root of what the package raises on purpose: one sentence, which says what to do next."""


class ArchiveError(RunsError):
    """A file is no archive of runs, or not a whole one."""


class ComparisonError(RunsError, ValueError):
    """Runs cannot be grouped or compared as was asked."""


class FilterError(RunsError, ValueError):
    """A filter, a sort, a column or a number of points is invalid."""


class ForeignError(RunsError):
    """A file or folder holds no runs of a known tracker, or one of them cannot be read."""


class LaunchError(RunsError):
    """A recorded run cannot be started again: it runs, or its script, its sources or its states are not there."""


class MissingExtraError(RunsError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


class PlotError(RunsError):
    """There is nothing to draw, or no way to draw it where it was asked for."""


class ReportError(RunsError, ValueError):
    """A block of a report, `{{...}}`, is invalid."""


class RunNotFoundError(RunsError, LookupError):
    """An id, or the beginning of a uid, stands for no run, or for more than one."""


class DiscardedError(RunNotFoundError):
    """A run is in the trash.

    Attributes:
        key: Its uid, or the id that it had, with which `Store.restore` brings it back.
    """

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class ServerError(RunsError):
    """The embedded MongoDB does not start."""


class StoreError(RunsError):
    """A folder or database of runs, or a record in it, cannot be read or written."""


class ChangedError(StoreError):
    """A note that is to be replaced was changed by somebody else since it was read."""


class DamagedError(StoreError):
    """A content, such as a source of a run, is not what its record says."""


class RemovedError(StoreError):
    """A run was removed after a question found it; the same question does not find it again."""


class StoreAwayError(StoreError):
    """The folder of runs is not there, or the server of the database does not answer; it may come back."""


class UnsearchableError(StoreError):
    """A file cannot be unpacked, or is too large to be, so that nobody knows which names are in it."""


class SweepError(RunsError, ValueError):
    """A sweep is missing, or its spec is invalid."""


@contextlib.contextmanager
def needing_extra(extra: str, what: str, note: str = "") -> Iterator[None]:
    """Import optional packages within; a missing one is an error that names the extra."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(missing_package(f"{what} needs", error.name, extra, note)) from error


@contextlib.contextmanager
def naming_os_errors(sentence: str, hint: str = "", kind: type[RunsError] = StoreError) -> Iterator[None]:
    """Turn an OSError within into an error of the package: the sentence, the system's reason in brackets, and `hint`.

    The hint says what to do next, and begins with its punctuation: `; check its permissions`.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{sentence} ({error.strerror or error}){hint}") from error
