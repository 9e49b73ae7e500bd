"""Installed packages, read from their folders.

`importlib.metadata` takes 20 ms to import, and parses what it reads as e-mails. It is left to packages in archives, and
to finders of packages beside Python's own.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

__all__ = ["Package", "entry_points", "find_package", "packages", "packages_in"]

_HEADER = re.compile("^(Name|Version): *(.*)$", re.MULTILINE)

# Returns the text of one of the files with a package's metadata, or at least so much of it; None if there is none.
Reader = Callable[..., str | None]
# Most metadata name the package within so much text; a readme may be a hundred times as long.
_HEAD = 1024


class Package:
    """An installed package, with its metadata; name and version are empty if it is half removed."""

    def __init__(self, read: Reader) -> None:
        self.read = read
        fields = self._fields(_HEAD)
        fields = fields if len(fields) == 2 else self._fields(-1)
        self.name, self.version = fields.get("Name", ""), fields.get("Version", "")

    def _fields(self, size: int) -> dict[str, str]:
        text = self.read("METADATA", size) or self.read("PKG-INFO", size) or ""
        head = text.partition("\n\n")[0]
        return dict(_HEADER.findall(head if size < 0 else head.rpartition("\n")[0]))

    @property
    def modules(self) -> list[str]:
        """Names of its modules at the top level: those that it lists, else its own."""
        return (self.read("top_level.txt") or self.name).split()


def packages() -> Iterator[Package]:
    """Yield the packages on the search path; of two of the same name, the first is imported."""
    for place in sys.path:
        yield from packages_in(place)


def packages_in(place: str) -> Iterator[Package]:
    """Yield the packages in a folder or archive on the search path."""
    return (package for _, read in _readers(place) if (package := Package(read)).name and package.version)


def find_package(name: str) -> Package | None:
    """Return the package of this name that is imported; None if there is none."""
    wanted = _normalized(name)
    found = (Package(read) for place in sys.path for each, read in _readers(place) if each == wanted)
    return next((package for package in found if package.name and package.version), None)


def entry_points(group: str) -> dict[str, str]:
    """Return the entry points of a group by name, each a module or `module:name`; of the first package that has it."""
    found: dict[str, str] = {}
    for read in (read for place in sys.path for _, read in _readers(place)):
        _, is_there, rest = (read("entry_points.txt") or "").partition(f"[{group}]\n")
        for line in rest.partition("\n[")[0].splitlines() if is_there else ():
            name, _, value = line.partition("=")
            if value and not line.startswith(("#", ";")):
                found.setdefault(name.strip(), value.strip())
    return found


def _readers(place: str) -> list[tuple[str, Reader]]:
    """Return each package in a folder or archive: its normalized name, and a reader of its metadata."""
    path = Path(place)
    try:
        path = path.absolute()
        changed = path.stat().st_mtime_ns
    except OSError:
        return []
    return _readers_in(
        path,
        changed,
        any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path),
    )


@functools.lru_cache(64)
def _readers_in(place: Path, _: int, has_finders: bool) -> list[tuple[str, Reader]]:
    """Do the same; the time of the place's last change is part of the cache's key."""
    if has_finders or not place.is_dir():
        from importlib import metadata

        found = metadata.distributions(path=[str(place)])
        return [(_normalized(each.metadata["Name"] or ""), functools.partial(_of_distribution, each)) for each in found]
    names = [name for name in os.listdir(place) if name.lower().endswith((".dist-info", ".egg-info"))]  # noqa: PTH208
    return [
        (_normalized(name.rpartition(".")[0].partition("-")[0]), functools.partial(_read, f"{place}{os.sep}{name}"))
        for name in names
    ]


def _normalized(name: str) -> str:
    """Return the form in which names of packages are compared (PEP 503)."""
    return re.sub("[-_.]+", "-", name).lower()


def _of_distribution(found: Any, name: str, size: int = -1) -> str | None:
    return found.read_text(name)


def _read(folder: str, name: str, size: int = -1) -> str | None:
    try:
        handle = os.open(f"{folder}{os.sep}{name}", os.O_RDONLY)
    except OSError:
        return None
    with os.fdopen(handle, "rb", buffering=0) as stream:
        try:
            return stream.read(size).decode("utf-8", "replace").replace("\r\n", "\n")
        except OSError:  # it is a folder
            return None
