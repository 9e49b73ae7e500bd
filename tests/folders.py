"""Folders as dictionaries: the bytes of each file by its path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["read_files", "write_files"]


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files into a folder, which is made if need be, and return the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    """Read all files below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
