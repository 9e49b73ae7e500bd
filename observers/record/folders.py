"""Folders of runs: creating, locking and following them when they are moved or deleted; paths of artifacts in them.

Locks are those of `flock`, which end with their process. A forked child would share them with its parent, and a worker
of a data loader may outlive a killed parent, so a child closes its copies at once. If the file system has no such
locks, nothing is held, and the caller learns that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sacristan.observers.errors import ArtifactError, ReservedNameError
from sacristan.observers.record.files import Descriptor, make_folder, relative_path, sync_folder
from sacristan.observers.record.schema import LOCK, OWN_FILES, RUN

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

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
        """Take the lock; return False without a folder or locks. Without `wait`, this may raise BlockingIOError."""
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
    """Hold a folder against other processes, as far as it exists and locks do; `wait`, or raise BlockingIOError."""
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


# Consecutive numbers that other processes may have taken; beyond that, the file system's answers are wrong.
_MOST_TAKEN = 1000


def make_run_folder(base: Path, wanted: Any = None) -> tuple[Path, Path, Any]:
    """Create a run's folder, elsewhere if that is impossible; return the folder of runs, the run's, and its id."""
    try:
        return base, *make_numbered_folder(base, wanted)
    except OSError as error:
        # Another place is better than none, and recording must not stop the run.
        elsewhere = Path(tempfile.mkdtemp(prefix="sacristan-"))
        folder, number = make_numbered_folder(elsewhere)
        _log.error("%s cannot be written (%s); this run is recorded in %s", base, error.strerror, folder)
        return elsewhere, folder, number if wanted is None else wanted


def make_numbered_folder(base: Path, wanted: Any = None) -> tuple[Path, Any]:
    """Create a folder of this process alone; return it and its id: `wanted` if free, otherwise the next number."""
    make_folder(base)
    folder, number = _make_folder(base, wanted)
    sync_folder(base)
    return folder, number


def _make_folder(base: Path, wanted: Any) -> tuple[Path, Any]:
    if wanted is not None:
        with contextlib.suppress(FileExistsError):
            (base / str(wanted)).mkdir()
            return base / str(wanted), wanted
    number = 1 + max(filter(None, (as_number(entry.name) for entry in os.scandir(base))), default=0)
    last = number + _MOST_TAKEN
    while True:
        try:
            (base / str(number)).mkdir()
        except FileExistsError:  # another process was faster
            if number == last:
                raise
            number += 1
        else:
            return base / str(number), str(number) if wanted is None else wanted


def as_number(name: str) -> int | None:
    """Return the number that a text stands for, in the digits 0 to 9; None for other texts, or too long for a run's."""
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 256 else None


def artifact_path(folder: Path, name: Any) -> Path:
    """Return the path of an artifact; reject names of the record's files and paths that lead out of the folder."""
    # A colon separates a drive on other systems only, and is used in names.
    relative = relative_path(name.replace(":", "_")) if isinstance(name, str) else None
    path = (folder / name).resolve() if relative is not None else folder.resolve()
    if relative is None or not path.is_relative_to(folder.resolve()):
        raise ArtifactError(
            f"artifact name: got {name!r}, expected a name within the run's folder without backslashes and control "
            "characters"
        )
    if path.name in OWN_FILES:
        raise ReservedNameError(f"artifact name: got {name!r}, expected one that its record does not use")
    return path


# ---------------------------------------------------------------------- a folder that is moved or deleted


class RunFolder:
    """Keeps a run's folder open, and so finds it after it was moved."""

    def __init__(self, folder: Path) -> None:
        self._home = folder.absolute()
        self._opened: Descriptor | None = None
        self._open(folder)

    def _open(self, folder: Path) -> None:
        self.close()
        with contextlib.suppress(OSError, AttributeError):  # not possible on Windows
            self._opened = Descriptor(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))

    def _is_at(self, path: Path) -> bool:
        try:
            return self._opened is not None and self._opened.is_at(path)
        except OSError:
            return False

    def moved_to(self, before: Path) -> Path | None:
        """Return where the folder was moved to; None if it is still there, was deleted, or cannot be found."""
        if self._opened is None or not self._opened.is_open or self._is_at(before):
            return None
        try:
            there = Path(f"/proc/self/fd/{self._opened.number}").readlink()
        except OSError:
            return None
        return there if self._is_at(there) else None

    def renew(self, base: Path) -> tuple[Path, RecordLock]:
        """Replace a deleted folder: in the same place, or below `base` if another run has taken that place."""
        folder, lock = self._home, RecordLock(self._home)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / RUN).exists() and not self._is_at(folder):
                raise FileExistsError(folder)
            lock.acquire()
        except OSError:
            _, folder, _ = make_run_folder(base)
            lock = RecordLock(folder)
            lock.acquire()
        self._home = folder.absolute()
        self._open(folder)
        return folder, lock

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
