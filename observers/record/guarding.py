"""Protection of a run from its observers: from their errors, from slow work, and from copies in forked children."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from sacristan.observers.errors import ObserversError

__all__ = ["Apart", "Owned", "Pace", "guarded", "guarded_without_lock"]

_log = logging.getLogger(__name__)
# The share of the time that paced work may take.
_SHARE = 0.01


class Owned:
    """Base of observers that record for one process; the copy in a forked child must not change the parent's record."""

    _owner_pid: int | None = None
    _has_warned_child = False

    def _own(self) -> None:
        """Record for this process from now on."""
        self._owner_pid, self._has_warned_child = os.getpid(), False

    def _is_copy(self) -> bool:
        """Tell whether this is the copy in a forked child, and warn once that the child records nothing."""
        if self._owner_pid is None or self._owner_pid == os.getpid():
            return False
        if not self._has_warned_child:
            self._has_warned_child = True
            _log.warning(
                "%s: process %d was forked from %d, which records the run; nothing is recorded from the child",
                type(self).__name__,
                os.getpid(),
                self._owner_pid,
            )
        return True


class Apart:
    """Runs the parts of an event separately: an error in one is logged once, and the next part follows.

    `failed` has the parts whose last attempt failed.
    """

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self._logged: set[str] = set()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run a block, and log an error instead of raising it."""
        try:
            yield
        except Exception:
            self.failed.add(name)
            if name not in self._logged:
                self._logged.add(name)
                _log.exception("%s failed; the run continues, and so does the rest of its record", name)
        else:
            self.failed.discard(name)


class Pace:
    """Spaces out work, so that it takes at most 1 % of the time however often it could be done.

    if pace.is_due:
        with pace:  # if this takes 1 ms, it is due again in 99 ms
            look()
    """

    def __init__(self) -> None:
        self._due = self._began = 0.0

    @property
    def is_due(self) -> bool:
        """True if the work may be done again."""
        return time.monotonic() >= self._due

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = time.monotonic()
        self._due = ended + (1 / _SHARE - 1) * (ended - self._began)


def guarded(method: Callable) -> Callable:
    """Make an event log its errors instead of raising them, hold the observer's lock, and do nothing in a child."""
    event = guarded_without_lock(method)

    @functools.wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Before the lock: in a child, it may be held by a thread that does not exist there.
        if self._is_copy():
            return None
        with self._lock:
            return event(self, *args, **kwargs)

    return locked


def guarded_without_lock(method: Callable) -> Callable:
    """Do what `guarded` does without the lock, for events that may take long; recording continues meanwhile."""

    @functools.wraps(method)
    def event(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_copy():
            return None
        try:
            return method(self, *args, **kwargs)
        except ObserversError as error:
            self.num_errors += 1
            _log.error("%s; the run continues", error)
        except Exception:
            self.num_errors += 1
            _log.exception("%s failed; the run continues, and so does its record", method.__name__)
        return None

    return event
