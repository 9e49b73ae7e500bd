"""Paths that stay right: names from outside within a folder, and folders wherever the process goes."""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePosixPath

__all__ = ["lasting_path", "relative_path", "shown_path"]

_MAX_PART_BYTES = 255


def relative_path(name: str) -> PurePosixPath | None:
    """Return a name as a path below a folder; None if it is none that stays there on every system.

    Absolute paths, `.` and `..`, empty parts, backslashes, drive letters, control characters, what is no text in UTF-8,
    and parts longer than file systems take are refused.
    """
    parts = name.split("/")
    is_odd = any(ord(letter) < 32 or ord(letter) == 127 for letter in name) or "\\" in name or ":" in parts[0]
    if is_odd or {"", ".", ".."} & set(parts):
        return None
    try:
        is_long = any(len(part.encode()) > _MAX_PART_BYTES for part in parts)
    except UnicodeEncodeError:
        return None
    return None if is_long else PurePosixPath(name)


def lasting_path(path: str | Path) -> Path:
    """Return a path from the root, which stays right when the working folder is changed or deleted."""
    path = Path(path).absolute()
    # The system looks up each folder before `..`, so a deleted one would make the path wrong.
    return path.resolve() if ".." in path.parts else path


def shown_path(path: Path) -> str:
    """Return a path as messages show it: from the working folder, if it is below that."""
    with contextlib.suppress(ValueError, FileNotFoundError):  # it lies elsewhere, or the working folder was deleted
        path = path.relative_to(Path.cwd())
    return str(path)
