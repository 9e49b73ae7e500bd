"""`Whereabouts`: follows the folder of a run, which may be moved or deleted while the run is active."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sacristan.observers.record.locking import RecordLock
from sacristan.observers.record.numbered_folder import make_run_folder
from sacristan.observers.record.regular_file import Descriptor
from sacristan.observers.record.schema import RUN

__all__ = ["Whereabouts"]


class Whereabouts:
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
        """Tell whether the folder is at `path`."""
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
        """Close the folder."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
