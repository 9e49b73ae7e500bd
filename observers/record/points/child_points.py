"""Points logged by forked children, on their way to the process that records the run.

The memory for points belongs to the parent, and must not have a second writer. A child appends its points to a file in
the run's folder, one JSON line each, and the parent moves them into the record with its heartbeats. Both lock the file
while they use it, so no line is torn and none is written while the file is emptied. The first line of the file is the
offset of the first point that was not moved: a parent that is killed halfway moves no point twice. The next writer of
the record moves the points that a killed parent left.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sacristan.observers.record.append_file import pwrite
from sacristan.observers.record.atomic_file import BINARY
from sacristan.observers.record.schema import CHILD_POINTS

try:
    import fcntl
except ImportError:  # on Windows, which does not fork either
    fcntl = None  # type: ignore[assignment]

__all__ = ["ChildPoint", "ChildPoints"]

_log = logging.getLogger(__name__)
_HEAD = b"%020d\n"
_HEAD_BYTES = len(_HEAD % 0)
# How long the parent waits for a child that was stopped while it holds the lock: at a heartbeat, and at the end.
_PATIENCE_S, _LAST_PATIENCE_S = 0.5, 5.0


class ChildPoint(NamedTuple):
    """A point logged by a child, `seconds` after the start of the run.

    A step of None is one above the metric's last, which only the parent knows.
    """

    name: str
    step: int | float | None
    value: float
    seconds: float


class ChildPoints:
    """The file that the children of one run log to; the recording process creates it before it forks.

    The owner updates `folder` if that is moved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fd: int | None = None
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder.absolute() / CHILD_POINTS

    def create(self) -> None:
        """Create the file unless it exists; if that fails, a child's `add` raises."""
        with contextlib.suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
            try:
                os.write(fd, _HEAD % _HEAD_BYTES)
            finally:
                os.close(fd)

    def after_fork(self) -> None:
        """Reset what a child has inherited: the parent's descriptor, and a lock that another thread may have held."""
        self._fd, self._lock = None, threading.Lock()
        # Opened now, because a later file of this name belongs to another session.
        with contextlib.suppress(OSError):
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | BINARY)

    def add(self, point: ChildPoint) -> None:
        """Append a point, from a child; raise FileNotFoundError if the run has ended, so nobody would read it."""
        line = json.dumps(point).encode() + b"\n"
        with self._lock:
            if self._fd is None:
                raise FileNotFoundError(self.path)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                status = os.fstat(self._fd)
                if not status.st_nlink:
                    raise FileNotFoundError(self.path)
                if os.write(self._fd, line) < len(line):  # the disk is full
                    os.ftruncate(self._fd, status.st_size)
                    os.write(self._fd, line)
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def taken(self, *, last: bool = False) -> Iterator[Iterator[ChildPoint]]:
        """Yield the points that were not moved yet, and empty the file if the block succeeds; if `last`, remove it.

        A point counts as moved when the next one is asked for. If a child was stopped while it holds the lock, the
        points come with a later call.
        """
        with _locked(self.path, _LAST_PATIENCE_S if last else _PATIENCE_S) as fd:
            if fd is None:
                yield iter(())
                return
            yield self._points(fd)
            os.ftruncate(fd, _HEAD_BYTES)
            pwrite(fd, _HEAD % _HEAD_BYTES, 0)
            if last:
                self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def left(self) -> Iterator[list[ChildPoint]]:
        """Yield the points that a killed process left, and remove the file if the block succeeds."""
        with _locked(self.path, _LAST_PATIENCE_S) as fd:
            if fd is None:
                yield []
                return
            yield list(self._points(fd, advances=False))
            self.path.unlink(missing_ok=True)

    def _points(self, fd: int, *, advances: bool = True) -> Iterator[ChildPoint]:
        size = os.fstat(fd).st_size
        with os.fdopen(os.dup(fd), "rb") as stream:
            with contextlib.suppress(ValueError):
                start = int(stream.read(_HEAD_BYTES) or _HEAD_BYTES)
                stream.seek(start if start <= size else _HEAD_BYTES)
            at = stream.tell()
            for line in stream:
                try:
                    name, step, value, seconds = json.loads(line)
                    yield ChildPoint(str(name), step, float(value), float(seconds))
                except (ValueError, TypeError):
                    _log.warning("%s: a line of %d bytes is damaged, and left out", self.path, len(line))
                at += len(line)
                if advances:
                    pwrite(fd, _HEAD % at, 0)


@contextlib.contextmanager
def _locked(path: Path, patience_s: float) -> Iterator[int | None]:
    """Open and lock a file; yield None if there is none, or another process holds the lock for too long."""
    try:
        fd = os.open(path, os.O_RDWR | BINARY)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):  # there is none until the process forks
            _log.warning("%s cannot be read (%s); it is retried", path, error.strerror)
        yield None
        return
    try:
        is_locked = _lock(fd, patience_s)
        if not is_locked:
            _log.warning("%s: a forked child holds it, and has stopped; what children log waits for it", path)
        yield fd if is_locked else None
    finally:
        # Closing alone would not release it: a child that is forked in the meantime has it open, too.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _lock(fd: int, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
