"""`Stopping`: ends a training after a whole step once a signal asked for it, on all ranks after the same one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from sacristan.ingredients.ranks.group import ALONE

__all__ = ["LOADER_ERRORS", "Stopping"]

T = TypeVar("T")
# Errors of a loader whose workers were ended from outside: it says so, or their shared memory is gone.
LOADER_ERRORS = (RuntimeError, OSError, EOFError)


class Stopping:
    """The signal that a run holds back until its training has saved a state.

    Args:
        record: The run, whose signals are held back; None where signals end the process at once.
    """

    def __init__(self, record: Any) -> None:
        self.ranks = ALONE
        self._record = record
        self._has_agreed = False

    @property
    def is_asked(self) -> bool:
        """True if a signal asked the training to end, and all ranks know."""
        return self._has_agreed if self.ranks.size > 1 else bool(self._own_signal())

    def deferred(self) -> contextlib.AbstractContextManager[None]:
        """Hold signals back inside the block."""
        return contextlib.nullcontext() if self._record is None else self._record.signals_deferred()

    def poll(self) -> bool:
        """Return `is_asked` after a step, when ranks exchange whether a signal has come; does not wait."""
        if self.ranks.size > 1:
            self._hold_back(self.ranks.poll(self._own_signal()))
        return self.is_asked

    def agree(self) -> None:
        """Inform all ranks of a signal that one of them held back; they wait for each other."""
        if self.ranks.size > 1 and not self._has_agreed:
            self._hold_back(self.ranks.agree(self._own_signal()))

    def stop_if_asked(self, saved_step: int | None) -> None:
        """End the run if a signal arrived; `saved_step` is the step of the last saved state, None if there is none."""
        if self._record is not None and self.is_asked:
            self._record.stop(saved_step)

    def until_asked(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items; stop if getting one fails after a signal asked the run to end.

        A signal to all processes of a job ends the workers of a loader, too.
        """
        iterator = iter(items)
        while True:
            held = []
            try:
                held.append(next(iterator))
            except StopIteration:
                return
            except LOADER_ERRORS:
                if self.is_asked:
                    return
                raise
            # Keeps no reference to the item: the next one takes its memory.
            yield held.pop()

    def _own_signal(self) -> int:
        return 0 if self._record is None else self._record.stopping or 0

    def _hold_back(self, number: int) -> None:
        if number and self._record is not None:
            self._has_agreed = True
            self._record.hold_back(number)
