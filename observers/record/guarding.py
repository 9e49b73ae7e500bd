"""Events of observers that keep their errors from the run, and belong to the process that records it."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

from observers.errors import ObserversError

__all__ = ["Apart", "Owned", "guarded", "guarded_without_lock"]

_log = logging.getLogger(__name__)


class Owned:
    """Records for one process; a forked child has a copy, which is to change nothing of what its parent records."""

    _owner_pid: int | None = None
    _has_told_child = False

    def _own(self) -> None:
        """Record for this process from now on."""
        self._owner_pid, self._has_told_child = os.getpid(), False

    def _is_copy(self) -> bool:
        """Tell whether this is the copy of a forked child; it is said once that such a one records nothing."""
        if self._owner_pid is None or self._owner_pid == os.getpid():
            return False
        if not self._has_told_child:
            self._has_told_child = True
            _log.warning(
                "%s: process %d was forked from %d, which records the run; nothing is recorded from the child",
                type(self).__name__,
                os.getpid(),
                self._owner_pid,
            )
        return True


class Apart:
    """Does the parts of an event apart from each other: one that fails is said once, and the next one follows.

    Attributes:
        failed: The parts that failed when they were tried last.
    """

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self._said: set[str] = set()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Keep the errors of a block from what follows it."""
        try:
            yield
        except Exception:
            self.failed.add(name)
            if name not in self._said:
                self._said.add(name)
                _log.exception("%s failed; the run continues, and so does the rest of its record", name)
        else:
            self.failed.discard(name)


def guarded(method: Callable) -> Callable:
    """Keep an event's errors from the run: they are logged, and the observer goes on with the next event.

    In a forked child it does nothing.

    Args:
        method: An event of an `Owned` observer with a `_lock`, which is held meanwhile, and `num_errors`, which counts.
    """
    event = guarded_without_lock(method)

    @functools.wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Before the lock, which a thread that is not in the child may have held.
        if self._is_copy():
            return None
        with self._lock:
            return event(self, *args, **kwargs)

    return locked


def guarded_without_lock(method: Callable) -> Callable:
    """Do as `guarded` does for an event that may take long: recording goes on meanwhile."""

    @functools.wraps(method)
    def event(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_copy():
            return None
        try:
            return method(self, *args, **kwargs)
        except ObserversError as error:
            self.num_errors += 1
            _log.error("%s; the run goes on", error)
        except Exception:
            self.num_errors += 1
            _log.exception("%s failed; the run continues, and so does its record", method.__name__)
        return None

    return event
