"""Events of observers that keep their errors from the run."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from observers.errors import ObserversError

__all__ = ["guarded", "guarded_without_lock"]

_log = logging.getLogger(__name__)


def guarded(method: Callable) -> Callable:
    """Keep an event's errors from the run: they are logged, and the observer goes on with the next event.

    Args:
        method: An event of an observer with a `_lock`, which is held meanwhile, and `num_errors`, which counts.
    """
    event = guarded_without_lock(method)

    @functools.wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return event(self, *args, **kwargs)

    return locked


def guarded_without_lock(method: Callable) -> Callable:
    """Do as `guarded` does for an event that may take long: recording goes on meanwhile."""

    @functools.wraps(method)
    def event(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except ObserversError as error:
            self.num_errors += 1
            _log.error("%s; the run goes on", error)
        except Exception:
            self.num_errors += 1
            _log.exception("%s failed; the run goes on, and so does its record", method.__name__)
        return None

    return event
