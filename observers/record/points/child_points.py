"""Points that forked children log, on their way to the process that records the run.

Memory that a child shares with its parent holds the parent's points, and is not for a second writer. A child appends
its points to a file of the run's folder, a line of JSON each, and the parent takes them from there with its heartbeats.
Each holds a lock meanwhile, so that no line is cut in two, and none is written while the file is emptied. The first
line says where the first point is that was not taken, so that a parent that is killed on the way leaves none twice.
What it has not taken, the next writer of the record takes.
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

from observers.record.positional import BINARY, pwrite
from observers.record.schema import CHILD_POINTS

try:
    import fcntl
except ImportError:  # not on Windows, which does not fork either
    fcntl = None  # type: ignore[assignment]

__all__ = ["ChildPoint", "ChildPoints"]

_log = logging.getLogger(__name__)
# How long a child may hold the lock, because it was stopped, before its parent passes it over; and at the run's end.
_HEAD = b"%020d\n"
_HEAD_BYTES = len(_HEAD % 0)
_PATIENCE_S, _LAST_PATIENCE_S = 0.5, 5.0


class ChildPoint(NamedTuple):
    """A point as a child logs it.

    Attributes:
        name: Its metric.
        step: Its step; None is one above the last, which the parent knows.
        value: Its value.
        seconds: When it was logged, since the run's start.
    """

    name: str
    step: int | float | None
    value: float
    seconds: float


class ChildPoints:
    """The file that children of one run log to; made by the process that records it, before it forks.

    Args:
        folder: The run's folder.

    Attributes:
        folder: The same, which may be moved.
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
        """Make the file, if it is not there; a child that finds none says so."""
        with contextlib.suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
            try:
                os.write(fd, _HEAD % _HEAD_BYTES)
            finally:
                os.close(fd)

    def after_fork(self) -> None:
        """Begin anew in a child: what the parent has open, or a thread of it held, is not the child's."""
        self._fd, self._lock = None, threading.Lock()
        # Now, because a later file of this name is that of another session.
        with contextlib.suppress(OSError):
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | BINARY)

    def add(self, point: ChildPoint) -> None:
        """Append a point, from a child.

        Raises:
            OSError: If it cannot be written, or nobody takes it any more: a FileNotFoundError.
        """
        line = json.dumps(point).encode() + b"\n"
        with self._lock:
            if self._fd is None:
                raise FileNotFoundError(self.path)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                there = os.fstat(self._fd)
                if not there.st_nlink:
                    raise FileNotFoundError(self.path)
                if os.write(self._fd, line) < len(line):  # the disk is full
                    os.ftruncate(self._fd, there.st_size)
                    os.write(self._fd, line)
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def taken(self, *, last: bool = False) -> Iterator[Iterator[ChildPoint]]:
        """Give every point that came, and empty the file when the block ends well; the `last` time removes it.

        A point counts as taken once the next one is asked for. A child that was stopped while it holds the lock does
        not stop its parent: its points come with the next call.
        """
        with _opened(self.path, _LAST_PATIENCE_S if last else _PATIENCE_S) as fd:
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
        """Give every point that a killed process has not taken, and remove the file when the block ends well."""
        with _opened(self.path, _LAST_PATIENCE_S) as fd:
            if fd is None:
                yield []
                return
            yield list(self._points(fd, notes=False))
            self.path.unlink(missing_ok=True)

    def _points(self, fd: int, *, notes: bool = True) -> Iterator[ChildPoint]:
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
                if notes:
                    pwrite(fd, _HEAD % at, 0)


@contextlib.contextmanager
def _opened(path: Path, patience_s: float) -> Iterator[int | None]:
    """Open a file, which is locked meanwhile; None if there is none, or others hold it for too long."""
    try:
        fd = os.open(path, os.O_RDWR | BINARY)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):  # none, as long as nobody forks
            _log.warning("%s cannot be read (%s); it is tried again", path, error.strerror)
        yield None
        return
    try:
        is_locked = _lock(fd, patience_s)
        if not is_locked:
            _log.warning("%s: a forked child holds it, and has stopped; what children log waits for it", path)
        yield fd if is_locked else None
    finally:
        # Not by closing it alone: a child that is forked meanwhile has it open, too.
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
