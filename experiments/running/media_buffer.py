"""`MediaBuffer`: keeps logged media until the run's next heartbeat, which makes their files."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from experiments.running.logged_values import as_name, as_step, check_countable, located
from observers.errors import MediaError, MetricError
from observers.media import __all__ as KINDS
from observers.media.kinds import Media
from observers.record import run_clock
from observers.record.media_entry import Content, MediaEntry

__all__ = ["MAX_WAITING_BYTES", "MediaBuffer"]

_log = logging.getLogger(__name__)

MAX_WAITING_BYTES = 256 * 2**20


class MediaBuffer:
    """Keeps media until they are taken, which makes their files.

    Beyond `MAX_WAITING_BYTES`, the caller of `add` makes the file itself, which slows it down: nothing is dropped.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[tuple, Media | Content | None, int]] = deque()
        self._waiting_bytes = 0
        self._next_step: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def add(self, name: str, media: Media, step: int | float | None = None) -> None:
        """Take one; without a step, one above the last of that name.

        Raises:
            MediaError: If `media` is none, the name no string, or the step no number.
        """
        at = run_clock.now()
        try:
            name, step = as_name(name), as_step(step)
            if not isinstance(media, Media):
                kinds = ", ".join(sorted({*KINDS} - {"Media"}))
                raise MetricError(f"got a {type(media).__name__}, expected one of {kinds} of the package observers")
            if step is None:
                last = self._next_step.get(name, -1)
                check_countable(last)
                step = last + 1
        except MetricError as error:
            raise MediaError(located(error, "log_media", name)) from None
        self._next_step[name] = step
        held: Media | Content | None = media
        num_bytes = media.num_bytes
        if self._waiting_bytes + num_bytes > MAX_WAITING_BYTES:
            held = _encode(name, step, media)
            num_bytes = 0 if held is None else held.num_bytes
        with self._lock:
            self._waiting.append(((name, media.kind, step, at), held, num_bytes))
            self._waiting_bytes += num_bytes
            self._counts[name] = self._counts.get(name, 0) + 1

    def position(self) -> dict[str, list]:
        """Return how many were logged of each name so far, taken or not, and the last step."""
        return {name: [count, self._next_step[name]] for name, count in self._counts.copy().items()}

    def count_from(self, position: Mapping[str, list]) -> None:
        """Count on from a position; what waits is not looked at."""
        self._counts = {name: count for name, (count, _) in position.items()}
        self._next_step = {name: step for name, (_, step) in position.items()}

    def clear(self) -> None:
        """Forget what waits: nobody keeps it."""
        with self._lock:
            self._waiting.clear()
            self._waiting_bytes = 0

    def take(self, until: float) -> list[MediaEntry]:
        """Make the files of what waits, and return them; begin with none after `until` on the monotonic clock."""
        entries = []
        while self._waiting and time.monotonic() < until:
            with self._lock:
                (name, kind, step, at), held, num_bytes = self._waiting.popleft()
                self._waiting_bytes -= num_bytes
            content = _encode(name, step, held) if isinstance(held, Media) else held
            entries.append(MediaEntry(name, kind, step, at, content))
        return entries


def _encode(name: str, step: Any, media: Media) -> Content | None:
    try:
        return media.encode()
    except Exception:
        # Such as a lack of memory; what is wrong with the media themselves was said when they were made.
        _log.exception("%s, step %s: the file of this %s could not be made, and is lost", name, step, media.kind)
        return None
