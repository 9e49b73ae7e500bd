"""Files of a source, which is not trusted: no link and no name leads out of its folder, and no database is changed."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sacristan.observers.record.files import relative_path
from sacristan.runs.errors import ForeignError

__all__ = [
    "INCOMPLETE",
    "damage_of",
    "damage_texts",
    "file_inside",
    "files_below",
    "is_database",
    "is_incomplete",
    "is_inside",
    "open_database",
    "table_columns",
]

# The end of the hidden name of a folder that `sacristan export` has not finished.
INCOMPLETE = ".incomplete"
_MAGIC = b"SQLite format 3\0"


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
    """Yield the regular files below a folder by their names, which may have slashes.

    `left_out` receives a sentence for each link, except for one to a file of the folder.
    """
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
    """Open a SQLite database without writing to it: one that its last writer left unfinished is copied first.

    Its errors, also those in the block, become a ForeignError.
    """
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
        ((found,),) = database.execute("PRAGMA integrity_check(1)").fetchall()
    except (sqlite3.Error, ValueError) as error:
        found = str(error)
    reason = " ".join(found.replace("*** in database main ***", "").split())
    return [] if found == "ok" else [f"{path.name} is damaged ({reason}): rows may be missing or wrong"]


def table_columns(database: sqlite3.Connection) -> dict[str, set[str]]:
    """Return the names of the columns of each table."""
    rows = database.execute(
        "SELECT m.name, c.name FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS c WHERE m.type = 'table'"
    )
    columns: dict[str, set[str]] = {}
    for table, column in rows:
        columns.setdefault(table, set()).add(column)
    return columns
