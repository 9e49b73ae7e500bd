"""Reads of a run's code beside its config: files below its folders, and environment variables."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sacristan.observers.provenance.sources import is_installed
from sacristan.observers.record.redaction import is_secret_name, redact

__all__ = ["OpenedFiles", "changed_reads", "variables_in"]

# More files than this are a data set, which has its own fingerprint.
_MAX_FILES = 1000
# Only the length of larger files is recorded, because reading them would delay the end of the run.
_MAX_BYTES = 64 * 2**20
_MAX_BYTES_IN_ALL = 256 * 2**20
_CODE = (".py", ".pyc", ".pyi", ".so", ".pyd", ".pth")
_VARIABLE = re.compile(rb"""(?:\benviron\s*(?:\[|\.\s*(?:get|pop|setdefault)\s*\()|\bgetenv\s*\()\s*["'](\w+)["']""")

# The active watchers. Python cannot remove an audit hook, so one hook stays, and does nothing without a watcher.
_watching: list[OpenedFiles] = []
_is_hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watching:
        path, _, flags = arguments
        if isinstance(path, str | bytes) and isinstance(flags, int):
            for each in _watching:
                each.note(path, flags)


class OpenedFiles:
    """Notes the files in some folders that this process opens for reading, from `begin` to `end`.

    Files that it also opens for writing are made by the run and do not count, nor do code, which is recorded as
    sources, installed packages, hidden folders, and files below `without`.

    Args:
        folders: The folders; names are relative to the first one that contains the file.
        without: A folder whose files do not count, such as that of the record.
    """

    def __init__(self, folders: Iterable[Path], without: Path) -> None:
        self._folders = list(dict.fromkeys(os.path.join(folder.absolute(), "") for folder in folders))  # noqa: PTH118
        self._without = os.path.join(without.absolute(), "")  # noqa: PTH118
        self._read: dict[str, None] = {}
        self._written: set[str] = set()

    def begin(self) -> None:
        """Start to watch."""
        global _is_hooked
        if not _is_hooked:
            sys.addaudithook(_hook)
            _is_hooked = True
        _watching.append(self)

    def end(self) -> None:
        """Stop watching."""
        if self in _watching:
            _watching.remove(self)

    def note(self, path: str | bytes, flags: int) -> None:
        """Note an opened file; never raise, because the caller that opens the file would get the error."""
        try:
            name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        except (OSError, ValueError):  # the working folder is gone, or the name is invalid
            return
        if not name.startswith(tuple(self._folders)) or name.startswith(self._without) or name.endswith(_CODE):
            return
        if flags & (os.O_WRONLY | os.O_RDWR):
            if len(self._written) < _MAX_FILES:
                self._written.add(name)
        elif len(self._read) <= _MAX_FILES and name not in self._written:
            self._read[name] = None

    def contents(self) -> dict[str, str]:
        """Return the MD5 of each file read, by name, or the length of a large one; empty for too many files."""
        contents: dict[str, str] = {}
        left = _MAX_BYTES_IN_ALL
        for name in self._read if len(self._read) <= _MAX_FILES else ():
            path, short = Path(name), self._short(name)
            if name in self._written or is_installed(str(Path(short).parent)) or not path.is_file():
                continue
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                if size > min(_MAX_BYTES, left):
                    contents[short] = f"{size} bytes"
                else:
                    left -= size
                    contents[short] = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        return dict(sorted(contents.items()))

    def _short(self, name: str) -> str:
        """Return a file's path relative to the first of the folders that contains it."""
        return next(name.removeprefix(folder) for folder in self._folders if name.startswith(folder))


def variables_in(files: Iterable[str | Path]) -> dict[str, str | None]:
    """Return the environment variables that sources read by name, with their current values; None if not set.

    Variables of the lab, and those with names of secrets, are left out.
    """
    names: set[str] = set()
    for file in files:
        try:
            names.update(name.decode() for name in _VARIABLE.findall(Path(file).read_bytes()))
        except OSError:
            continue
    return {
        name: None if (value := os.environ.get(name)) is None else redact(value)
        for name in sorted(names)
        if not (name.startswith("SACRISTAN_") or is_secret_name(name))
    }


def changed_reads(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the files or variables that two runs both read, but with different contents, as `{name: [was, is]}`."""
    return {name: [before[name], now[name]] for name in sorted(before.keys() & now.keys()) if before[name] != now[name]}
