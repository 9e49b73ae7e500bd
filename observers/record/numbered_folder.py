"""The folder of a run: making it, and where in it an artifact may go."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from observers.errors import ArtifactError, ReservedNameError
from observers.record.atomic_file import make_folder, sync_folder
from observers.record.safe_paths import relative_path
from observers.record.schema import OWN_FILES

__all__ = ["artifact_path", "as_number", "make_numbered_folder", "make_run_folder"]

_log = logging.getLogger(__name__)

# Numbers in a row that other processes may have taken; when more seem to be, the file system does not tell the truth.
_MOST_TAKEN = 1000


def make_run_folder(base: Path, wanted: Any = None) -> tuple[Path, Path, Any]:
    """Make a numbered folder below `base`; where nothing can be made there, below a temporary one, which is said.

    Returns what it is below, the folder, and its id.
    """
    try:
        return base, *make_numbered_folder(base, wanted)
    except OSError as error:
        # Somewhere else is better than nowhere, and nothing of this may stop the run.
        elsewhere = Path(tempfile.mkdtemp(prefix="sacristan-"))
        folder, number = make_numbered_folder(elsewhere)
        _log.error("%s cannot be written (%s); this run is recorded in %s", base, error.strerror, folder)
        return elsewhere, folder, number if wanted is None else wanted


def make_numbered_folder(base: Path, wanted: Any = None) -> tuple[Path, Any]:
    """Make a folder below `base` that no other process has; return it and its id.

    Args:
        base: The folder of runs; made if it is not there.
        wanted: The id to take if it is free; without one, or else, the folder is called by the next number.

    Raises:
        OSError: If nothing can be made there.
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
        except FileExistsError:  # another process was quicker
            if number == last:
                raise
            number += 1
        else:
            return base / str(number), str(number) if wanted is None else wanted


def as_number(name: str) -> int | None:
    """Return the number that a text is, in the digits 0 to 9; None if it is none, or longer than any run's."""
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 256 else None


def artifact_path(folder: Path, name: Any) -> Path:
    """Return where in a run's folder the artifact `name` is kept.

    Raises:
        ArtifactError: If that is outside of it, or no name of a file.
        ReservedNameError: If it is a file that the run has anyway.
    """
    # A colon stands for a drive on other systems alone, and is in use in names.
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
