"""Locks on folders: on a record, held by its writer while it writes, and short ones.

They are `flock` locks, which end with their process. A forked child would share them with its parent, and a worker of a
data loader may outlive a killed parent, so a child closes its copies at once. If the file system has no such locks,
nothing is held, and the caller learns that.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from sacristan.observers.record.files import Descriptor
from sacristan.observers.record.schema import LOCK

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["RecordLock", "claimed", "is_locked", "locked"]

# A process that checks whether a record is locked holds it for an instant only.
_ASKED_S = 5.0


class RecordLock:
    """The lock on the record in a folder: a lock on a file in it, which stays there."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._descriptor: Descriptor | None = None
        self._pid = 0

    @property
    def is_held(self) -> bool:
        """True if this process holds it; a forked child does not."""
        return self._pid == os.getpid() and self._descriptor is not None and self._descriptor.is_open

    def acquire(self, *, wait: bool = False) -> bool:
        """Take the lock; return whether it is held: False if the folder is missing, or there are no locks.

        Without `wait`, raises BlockingIOError if another process holds it, or another object in this one.
        """
        descriptor = _open(self.path, os.O_RDWR | os.O_CREAT)
        if descriptor is None:
            return False
        try:
            is_locked = _lock(descriptor.number, wait=wait)
        except BaseException:
            _close(descriptor)
            raise
        if not is_locked:
            _close(descriptor)
            return False
        self._descriptor, self._pid = descriptor, os.getpid()
        return True

    def hold(self) -> None:
        """Take the lock again if other code of this process closed its file, which released it."""
        if self._descriptor is not None and self._pid == os.getpid() and not self._descriptor.is_open:
            self.release()
            with contextlib.suppress(BlockingIOError):
                self.acquire()

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor is not None and self._pid == os.getpid():
            if self._descriptor.is_open:
                # A program that a thread is starting has a copy of it, which would keep the lock for some moments.
                with contextlib.suppress(OSError):
                    fcntl.flock(self._descriptor.number, fcntl.LOCK_UN)
            _close(self._descriptor)
        self._descriptor = None


def is_locked(folder: Path) -> bool | None:
    """Tell whether any process, including this one, holds the lock on a record; None if that is unknown."""
    descriptor = _open(folder / LOCK, os.O_RDONLY)
    if descriptor is None:
        return None
    try:
        fcntl.flock(descriptor.number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        _close(descriptor)
    return False


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[RecordLock]:
    """Hold the lock on a record; see `RecordLock.acquire`."""
    lock = RecordLock(folder)
    lock.acquire(wait=wait)
    try:
        yield lock
    finally:
        lock.release()


@contextlib.contextmanager
def claimed(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a folder against all other processes that claim it.

    Nothing is held if it is missing, or there are no locks. Without `wait`, raises BlockingIOError if another process
    holds it.
    """
    descriptor = _open(folder, os.O_RDONLY)
    try:
        if descriptor is not None:
            _lock(descriptor.number, wait=wait)
        yield
    finally:
        if descriptor is not None:
            _close(descriptor)


def _lock(fd: int, *, wait: bool) -> bool:
    """Lock an open file; return whether that is possible."""
    deadline = time.monotonic() + _ASKED_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return True
        except BlockingIOError:
            # Processes that only check share it.
            if time.monotonic() > deadline or not _is_shared(fd):
                raise
            time.sleep(0.001)
        except OSError:
            return False


def _is_shared(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


# ---------------------------------------------------------------------- forked children

# Descriptors that are open for locks. No thread forks while this changes, so a child knows what to close.
_open_descriptors: set[Descriptor] = set()
_changing = threading.RLock()


def _open(path: Path, flags: int) -> Descriptor | None:
    if fcntl is None:
        return None
    with _changing:
        try:
            # So that a FIFO of that name does not block.
            descriptor = Descriptor(os.open(path, flags | os.O_NONBLOCK, 0o666))
        except OSError:
            return None
        _open_descriptors.add(descriptor)
        return descriptor


def _close(descriptor: Descriptor) -> None:
    with _changing:
        _open_descriptors.remove(descriptor)
        descriptor.close()


def _close_all() -> None:
    for descriptor in _open_descriptors:
        descriptor.close()
    _open_descriptors.clear()
    _changing.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_close_all)
