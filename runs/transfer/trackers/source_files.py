"""Files of a source, which is not trusted: no link and no name leads out of its folder, and no database is changed."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from sacristan.observers.record.files import relative_path
from sacristan.observers.record.json_text import parse_json
from sacristan.runs.errors import ForeignError

# The end of the hidden name of a folder that `sacristan export` has not finished.
INCOMPLETE = ".incomplete"
_MAGIC = b"SQLite format 3\0"
# Against ZIP bombs: the files unpack to at most so many bytes, or a hundred times the size of the archive.
PLAIN_BYTES, MAX_RATIO = 2**30, 100
_MAX_LINE_BYTES = 2**26
_CHUNK_BYTES = 2**20
_DAMAGES = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def is_incomplete(path: Path) -> bool:
    """Tell whether a path is in a folder that an export has not finished."""
    return any(part.startswith(".") and part.endswith(INCOMPLETE) for part in path.parts)


def damage_texts(path: Path, damages: list[tuple[int, int]], size: int, noun: str) -> list[str]:
    """Return a sentence for each damaged part of a file, given by its first byte and the first after it."""
    lost = (
        f"its last {end - start} bytes" if end == size else f"{end - start} bytes from byte {start} on"
        for start, end in damages
    )
    return [f"{path.name}: {each} are no whole {noun}" for each in lost]


def files_below(folder: Path, left_out: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the regular files below a folder by name; `left_out` gets a sentence for each link that leads outside."""
    for where, folders, names in os.walk(folder):
        folders.sort()
        links = [name for name in folders if Path(where, name).is_symlink()]
        for name in sorted([*names, *links]):
            path = Path(where, name)
            shown = path.relative_to(folder).as_posix()
            if path.is_symlink() and not (path.is_file() and is_inside(folder, path)):
                left_out.append(f"file {shown!r}: a link that leads to no file in its folder; put a copy in its place")
            elif path.is_file():
                yield shown, path


def file_inside(folder: Path, name: str) -> Path:
    """Return the path below a folder that a source names; one that leads out, even by a link, is a ValueError."""
    path = relative_path(name)
    if path is None or not is_inside(folder, folder / path):
        raise ValueError(f"{name!r} is no path in the run's folder")
    return folder / path


def is_inside(folder: Path, path: Path) -> bool:
    """Tell whether a path, after all links, is in a folder."""
    return path.resolve().is_relative_to(folder.resolve())


def is_database(path: Path) -> bool:
    """Tell whether a path is a regular file with the header of a SQLite database."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(16) == _MAGIC


@contextlib.contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a SQLite database without writing to it, copied first if unfinished; errors become a ForeignError."""
    with contextlib.ExitStack() as stack:
        try:
            with path.open("rb") as stream:
                has_wal = stream.read(20)[18:] == b"\2\2"
            beside = [path.with_name(path.name + suffix) for suffix in ("-wal", "-journal")]
            if any(each.exists() for each in beside):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="database-")))
                for each in (path, *beside):
                    if each.exists():
                        shutil.copyfile(each, folder / each.name)
                database = sqlite3.connect(folder / path.name)
            else:
                # With a write-ahead log, even readers create files beside it, unless nobody can write.
                immutable = "&immutable=1" if has_wal else ""
                database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{immutable}", uri=True)
            stack.callback(database.close)
            yield database
        except (sqlite3.Error, OSError) as error:
            # Not its subclasses, such as that for a locked one.
            damage = ": the database is damaged, or cut off" if type(error) is sqlite3.DatabaseError else ""
            raise ForeignError(f"{path}: it cannot be read ({error}){damage}") from error


def damage_of(path: Path, database: sqlite3.Connection) -> list[str]:
    """Return a sentence if a database is damaged, as rows may be missing then; there are no checksums of values."""
    try:
        ((report,),) = database.execute("PRAGMA integrity_check(1)").fetchall()
    except (sqlite3.Error, ValueError) as error:
        report = str(error)
    reason = " ".join(report.replace("*** in database main ***", "").split())
    return [] if report == "ok" else [f"{path.name} is damaged ({reason}): rows may be missing or wrong"]


def table_columns(database: sqlite3.Connection) -> dict[str, set[str]]:
    """Return the names of the columns of each table."""
    rows = database.execute(
        "SELECT m.name, c.name FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS c WHERE m.type = 'table'"
    )
    columns: dict[str, set[str]] = {}
    for table, column in rows:
        columns.setdefault(table, set()).add(column)
    return columns


class RunFiles:
    """The files of one run in a folder, or in a ZIP file, whose files are copied to the folder `copies`."""

    def __init__(self, path: Path, archive: zipfile.ZipFile | None, copies: Path) -> None:
        self._path, self._archive, self._copies, self._num_copies = path, archive, copies, 0
        self._num_bytes_left = max(PLAIN_BYTES, MAX_RATIO * path.stat().st_size) if archive else 2**63
        self.names = dict.fromkeys(archive.namelist() if archive else _names_below(path))

    def objects(self, name: str, left_out: list[str]) -> Iterator[Any]:
        """Yield the JSON of each intact line of a file; `left_out` gets a sentence on the others, or on damage."""
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
def open_run_files(path: Path, copies: Path) -> Iterator[RunFiles]:
    """Open the files of a run in a folder or a ZIP file.

    Files of an archive are copied to `copies`, where they must stay until the run has been used.
    """
    with contextlib.ExitStack() as stack:
        try:
            archive = None if path.is_dir() else stack.enter_context(zipfile.ZipFile(path))
        except (*_DAMAGES, ValueError) as error:
            raise ForeignError(f"it is no whole ZIP file ({error})") from error
        yield RunFiles(path, archive, copies)


def run_files_below(path: Path, mark: str) -> Iterator[tuple[Path, bool]]:
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
    for where, folders, names in os.walk(path):
        folders.sort()
        for file in (Path(where, name) for name in sorted(names)):
            if file.is_file() and not file.is_symlink():
                yield file.relative_to(path).as_posix()
