"""The files of one run in a folder or a ZIP file, as trackers write them offline.

A ZIP file is not trusted: it unpacks to a bounded number of bytes, into files with names of their own.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from sacristan.observers.record.json_text import parse_json
from sacristan.runs.errors import ForeignError

__all__ = ["Bundle", "bundles_below", "open_bundle"]

# Against ZIP bombs: the files unpack to at most so many bytes, or a hundred times the size of the archive.
PLAIN_BYTES, MAX_RATIO = 2**30, 100
_MAX_LINE_BYTES = 2**26
_CHUNK_BYTES = 2**20
_DAMAGES = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


class Bundle:
    """The files of one run.

    Args:
        archive: The opened ZIP file; None for a folder.
        copies: A folder for copies of the archive's files.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile | None, copies: Path) -> None:
        self._path, self._archive, self._copies, self._num_copies = path, archive, copies, 0
        self._num_bytes_left = max(PLAIN_BYTES, MAX_RATIO * path.stat().st_size) if archive else 2**63
        self.names = dict.fromkeys(archive.namelist() if archive else _names_below(path))

    def objects(self, name: str, left_out: list[str]) -> Iterator[Any]:
        """Yield the JSON of each line of a file, as far as it can be read.

        `left_out` receives a sentence if lines are not JSON, or the file is damaged.
        """
        bad: list[int] = []
        number = 0
        try:
            with self._open(name) as stream:
                while line := stream.readline(_MAX_LINE_BYTES):
                    number += 1
                    self._count(len(line))
                    try:
                        yield parse_json(line) if line.strip() else {}
                    except ValueError:
                        bad = [*bad[:1], number]
        except _DAMAGES as error:
            left_out.append(f"{name}: everything after line {number}, where it is damaged ({error})")
        if bad:
            left_out.append(f"{name}: line {bad[0]}{f' and others up to line {bad[1]}' if bad[1:] else ''}: no JSON")

    def file(self, name: str) -> Path:
        """Return the path of a file, or of its copy; a file that is missing or damaged is a ForeignError."""
        try:
            with self._open(name) as source:
                if self._archive is None:
                    return self._path / name
                copy = self._copies / str(self._num_copies)
                self._num_copies += 1
                with copy.open("wb") as target:
                    while piece := source.read(_CHUNK_BYTES):
                        self._count(len(piece))
                        target.write(piece)
        except _DAMAGES as error:
            raise ForeignError(f"{name}: it is damaged ({error})") from error
        checksum = self._archive.getinfo(name).CRC
        os.utime(copy, ns=(checksum, checksum))  # later imports compare sizes and times of change
        return copy

    def _open(self, name: str) -> IO[bytes]:
        try:
            if self._archive is not None:
                return self._archive.open(name)
            if name in self.names:
                return (self._path / name).open("rb")
        except KeyError:
            pass
        raise ForeignError(f"it has no file {name!r}")

    def _count(self, num_bytes: int) -> None:
        self._num_bytes_left -= num_bytes
        if self._num_bytes_left < 0:
            raise ForeignError(
                f"its files unpack to more than {MAX_RATIO} times its own size, and {PLAIN_BYTES // 2**30} GB"
            )


@contextlib.contextmanager
def open_bundle(path: Path, copies: Path) -> Iterator[Bundle]:
    """Open the files of a run in a folder or a ZIP file.

    Files of an archive are copied to `copies`, where they must stay until the run has been used.
    """
    with contextlib.ExitStack() as stack:
        try:
            archive = None if path.is_dir() else stack.enter_context(zipfile.ZipFile(path))
        except (*_DAMAGES, ValueError) as error:
            raise ForeignError(f"it is no whole ZIP file ({error})") from error
        yield Bundle(path, archive, copies)


def bundles_below(path: Path, mark: str) -> Iterator[tuple[Path, bool]]:
    """Yield each folder and ZIP file, and whether it holds a file called `mark`.

    Those that do not are ZIP files that are damaged or empty; others are skipped.
    """
    if not path.is_dir():
        has_mark = _holds(path, mark)
        if has_mark is not False:
            yield path, bool(has_mark)
        return
    for where, folders, names in os.walk(path):
        folders.sort()
        if mark in names:
            folders.clear()
            yield Path(where), True
        else:
            archives = (Path(where, name) for name in sorted(names) if name.endswith(".zip"))
            yield from ((file, bool(found)) for file in archives if (found := _holds(file, mark)) is not False)


def _holds(path: Path, mark: str) -> bool | None:
    """Tell whether a ZIP file holds a file of a name; None if it is damaged or empty."""
    try:
        with zipfile.ZipFile(path) as archive:
            return mark in archive.NameToInfo if archive.filelist else None
    except (*_DAMAGES, ValueError, OSError):
        return None


def _names_below(path: Path) -> Iterator[str]:
    """Yield the names of the regular files below a folder."""
    for where, folders, names in os.walk(path):
        folders.sort()
        for file in (Path(where, name) for name in sorted(names)):
            if file.is_file() and not file.is_symlink():
                yield file.relative_to(path).as_posix()
