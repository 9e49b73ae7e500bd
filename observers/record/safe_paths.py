"""Paths that stay valid: names from outside within a folder, and folders after the working folder has changed."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path, PurePosixPath

__all__ = ["file_name", "lasting_path", "relative_path", "shown_path"]

_MAX_PART_BYTES = 255


def relative_path(name: str) -> PurePosixPath | None:
    """Return a name as a path below a folder; None unless it stays below the folder on every system.

    Absolute paths, `.` and `..`, empty parts, backslashes, drive letters, control characters, text that is not UTF-8,
    and too long parts are rejected.
    """
    parts = name.split("/")
    if re.search(r"[\x00-\x1f\x7f\\]", name) or ":" in parts[0] or {"", ".", ".."} & set(parts):
        return None
    try:
        is_long = any(len(part.encode()) > _MAX_PART_BYTES for part in parts)
    except UnicodeEncodeError:
        return None
    return None if is_long else PurePosixPath(name)


def file_name(path: str | Path) -> str:
    """Return the name of a file; what `relative_path` rejects, such as bytes that are no UTF-8, becomes %XX."""
    odd = r"[\udc80-\udcff\x00-\x1f\x7f\\]"
    return re.sub(odd, lambda found: "".join(f"%{byte:02X}" for byte in os.fsencode(found[0])), Path(path).name)


def lasting_path(path: str | Path) -> Path:
    """Return an absolute path, which stays valid when the working folder is changed or deleted."""
    path = Path(path).absolute()
    # The system looks up each folder before `..`, so a deleted one would break the path.
    return path.resolve() if ".." in path.parts else path


def shown_path(path: Path) -> str:
    """Return a path as messages show it: relative to the working folder, if it is below that."""
    with contextlib.suppress(ValueError, FileNotFoundError):  # it is elsewhere, or the working folder was deleted
        path = path.relative_to(Path.cwd())
    return str(path)
