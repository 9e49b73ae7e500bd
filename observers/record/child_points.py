"""Points that forked children log, on their way to the process that records the run.

Memory that a child shares with its parent holds the parent's points, and is not for a second writer. A child appends
its points to a file of the run's folder, a line of JSON each, and the parent takes them from there with its heartbeats.
Each holds a lock meanwhile, so that no line is cut in two, and none is written while the file is emptied.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from observers.record.schema import CHILD_POINTS

try:
    import fcntl
except ImportError:  # not on Windows, which does not fork either
    fcntl = None  # type: ignore[assignment]

__all__ = ["ChildPoints"]

_log = logging.getLogger(__name__)


class ChildPoints:
    """The file that children of one run log to; made by the process that records it, before it forks.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder.absolute() / CHILD_POINTS
        self._fd: int | None = None
        self._pid = 0
        self._lock = threading.Lock()

    def create(self) -> None:
        """Make the file, if it is not there; a child that finds none says so."""
        with contextlib.suppress(OSError):
            self.path.touch()

    def after_fork(self) -> None:
        """Begin anew in a child: what the parent has open, or a thread of it held, is not the child's."""
        self._fd, self._lock = None, threading.Lock()

    def add(self, name: str, step: int | float | None, value: float, time: float) -> None:
        """Append a point, from a child.

        Raises:
            OSError: If it cannot be written, or the run has ended.
        """
        line = json.dumps([name, step, value, time]).encode() + b"\n"
        with self._lock:
            if self._fd is None:
                # Not made here: where there is none, nobody would take from it.
                self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                if not os.fstat(self._fd).st_nlink:
                    raise FileNotFoundError("the run has ended")
                os.write(self._fd, line)
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def take(self, keep: Callable[[str, int | float | None, float, float], Any], *, last: bool = False) -> None:
        """Give every point that came to `keep`, and empty the file; remove it with the `last` call.

        A child that was stopped while it holds the lock does not stop its parent: its turn comes with the next call.
        """
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # none, as long as nobody forks
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with os.fdopen(os.dup(fd), "rb") as stream:
                for line in stream:
                    self._take_line(line, keep)
            # Behind it: who is killed here leaves points twice, rather than none.
            os.ftruncate(fd, 0)
            if last:
                self.path.unlink()
        except BlockingIOError:
            _log.debug("%s: a child is writing; it is looked at again", self.path)
        except OSError as error:
            _log.warning("%s cannot be read (%s); it is tried again", self.path, error.strerror)
        finally:
            os.close(fd)

    def _take_line(self, line: bytes, keep: Callable[[str, int | float | None, float, float], Any]) -> None:
        try:
            name, step, value, time = json.loads(line)
            keep(name, step, value, time)
        except (ValueError, TypeError):  # a full disk has cut it off
            _log.warning("%s: a line of %d bytes is damaged, and left out", self.path, len(line))
