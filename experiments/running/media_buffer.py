"""`MediaBuffer`: keeps logged media until the run's next heartbeat, which makes their files."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from sacristan.experiments.running.logged_values import as_name, as_step, check_countable, located
from sacristan.observers.errors import MediaError, MetricError
from sacristan.observers.media import __all__ as KINDS
from sacristan.observers.media.kinds import Media
from sacristan.observers.record import run_clock
from sacristan.observers.record.media_files import Content, MediaEntry

__all__ = ["MAX_WAITING_BYTES", "MediaBuffer"]

_log = logging.getLogger(__name__)

MAX_WAITING_BYTES = 256 * 2**20


class MediaBuffer:
    """Keeps media until `take` encodes them.

    Beyond `MAX_WAITING_BYTES`, `add` encodes them itself, which slows down its caller: nothing is dropped.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[tuple, Media | Content | None, int]] = deque()
        self._waiting_bytes = 0
        self._next_step: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of waiting media."""
        return len(self._waiting)

    def add(self, name: str, media: Media, step: int | float | None = None) -> None:
        """Add an image, a table, ... to a series; without a step, it is one above the last."""
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
        """Return, by series, the number of media logged so far, taken or not, and the last step."""
        return {name: [count, self._next_step[name]] for name, count in self._counts.copy().items()}

    def count_from(self, position: Mapping[str, list]) -> None:
        """Continue counts and steps from a result of `position`; waiting media do not count."""
        self._counts = {name: count for name, (count, _) in position.items()}
        self._next_step = {name: step for name, (_, step) in position.items()}

    def clear(self) -> None:
        """Drop the waiting media: no observer keeps them."""
        with self._lock:
            self._waiting.clear()
            self._waiting_bytes = 0

    def take(self, until: float) -> list[MediaEntry]:
        """Encode the waiting media, and return them, oldest first.

        No file is started after `until`, a time of the monotonic clock.
        """
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
