"""`Whereabouts`: where the folder of a run is, which somebody may move or delete in mid-run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from observers.record.locking import RecordLock
from observers.record.numbered_folder import make_run_folder
from observers.record.schema import RUN

__all__ = ["Whereabouts"]


class Whereabouts:
    """Holds a run's folder open, and so knows it wherever it is.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._home = folder.absolute()
        self._fd: int | None = None
        self._open(folder)

    def _open(self, folder: Path) -> None:
        self.close()
        with contextlib.suppress(OSError, AttributeError):  # no such thing on Windows
            self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def is_at(self, path: Path) -> bool:
        """Tell whether the folder is at `path`."""
        try:
            return self._fd is not None and os.path.samestat(path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def moved_to(self, before: Path) -> Path | None:
        """Return where the folder is, which was at `before`; None if it still is, was deleted, or nobody knows."""
        if self._fd is None or self.is_at(before):
            return None
        try:
            there = Path(f"/proc/self/fd/{self._fd}").readlink()
        except OSError:
            return None
        return there if self.is_at(there) else None

    def renew(self, base: Path) -> tuple[Path, RecordLock]:
        """Make a folder in the place of one that was deleted: there, or where another run is, below `base`.

        Returns the folder, and the lock on it, which is held where there are locks.

        Raises:
            OSError: If nothing can be made.
        """
        folder, lock = self._home, RecordLock(self._home)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / RUN).exists() and not self.is_at(folder):
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
        """Let go of the folder."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
