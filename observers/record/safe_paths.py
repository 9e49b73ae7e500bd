"""Names of files that come from outside, and may be anything, as paths that stay in a folder."""

from __future__ import annotations

from pathlib import PurePosixPath

__all__ = ["relative_path"]

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
