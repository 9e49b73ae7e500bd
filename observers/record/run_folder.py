"""The folder of a run: creating it, following it when it is moved or deleted, and the path of an artifact in it."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from sacristan.observers.errors import ArtifactError, ReservedNameError
from sacristan.observers.record.files import Descriptor, make_folder, relative_path, sync_folder
from sacristan.observers.record.locking import RecordLock
from sacristan.observers.record.schema import OWN_FILES, RUN

__all__ = ["RunFolder", "artifact_path", "as_number", "make_numbered_folder", "make_run_folder"]

_log = logging.getLogger(__name__)

# Consecutive numbers that other processes may have taken; beyond that, the file system's answers are wrong.
_MOST_TAKEN = 1000


def make_run_folder(base: Path, wanted: Any = None) -> tuple[Path, Path, Any]:
    """Create a run's folder; if nothing can be created there, create it in a temporary folder, and report that.

    Returns the folder of runs, the run's folder, and its id: `wanted` if that is free, otherwise the next number.
    """
    try:
        return base, *make_numbered_folder(base, wanted)
    except OSError as error:
        # Another place is better than none, and recording must not stop the run.
        elsewhere = Path(tempfile.mkdtemp(prefix="sacristan-"))
        folder, number = make_numbered_folder(elsewhere)
        _log.error("%s cannot be written (%s); this run is recorded in %s", base, error.strerror, folder)
        return elsewhere, folder, number if wanted is None else wanted


def make_numbered_folder(base: Path, wanted: Any = None) -> tuple[Path, Any]:
    """Create a folder that no other process has, in `base`, which need not exist; return it and its id.

    The id is `wanted` if that is free, otherwise the next number.
    """
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
    """Return the path of an artifact in a run's folder.

    Raises ReservedNameError if the record has a file of that name, and ArtifactError for any other invalid name.
    """
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
