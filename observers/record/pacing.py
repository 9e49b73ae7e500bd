"""`Pace`: spaces out what a heartbeat does, so that heartbeats cost little however often they come."""

from __future__ import annotations

import time
from types import TracebackType

__all__ = ["Pace"]

_SHARE = 0.01


class Pace:
    """Spaces work out so that it takes 1 % of the time at most.

    if pace.is_due:
        with pace:  # that takes 1 ms: it is due again in 99 ms
            look()
    """

    def __init__(self) -> None:
        self._due = self._began = 0.0

    @property
    def is_due(self) -> bool:
        """True if it is due again."""
        return time.monotonic() >= self._due

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = time.monotonic()
        self._due = ended + (1 / _SHARE - 1) * (ended - self._began)
