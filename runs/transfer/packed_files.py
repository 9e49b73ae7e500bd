"""Contents of files that pack others: archives, databases of SQLite, Parquet, and the logs of W&B."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import sqlite3
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["BROKEN", "COMPRESSED", "PARQUET", "members"]

# How each kind of compressed file is unpacked and packed again, by its first bytes.
COMPRESSED: dict[bytes, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    b"\x1f\x8b": (gzip.decompress, lambda data: gzip.compress(data, mtime=0)),
    b"BZh": (bz2.decompress, bz2.compress),
    b"\xfd7zXZ": (lzma.decompress, lzma.compress),
}
# What the readers raise on a file that only begins like an archive.
BROKEN = (
    OSError, EOFError, ValueError, RuntimeError, ImportError, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError,
    sqlite3.Error, struct.error,
)  # fmt: skip
PARQUET = b"PAR1"
_DATABASE = b"SQLite format 3\0"
_NUM_ROWS = 1000


def members(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the members of an archive, or the rows of a database, a table or a log, as far as they can be read.

    Args:
        name: The file's name.
        data: The file's content; what is none of these has no members.
    """
    with contextlib.suppress(*BROKEN):  # its bytes are there as they are
        yield from _unpacked(name, data)
        if data.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                yield from ((info.filename, archive.read(info)) for info in archive.infolist())
        elif data[257:262] == b"ustar":
            yield from _members_of_tar(data)
        elif data.startswith(_DATABASE):
            yield from _rows_of_database(data)
        elif data.startswith(PARQUET):
            yield from _rows_of_parquet(data)
        else:
            yield from _records_of_wandb(data)


def _unpacked(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    for head, (unpack, _) in COMPRESSED.items():
        if data.startswith(head):
            yield Path(name).stem, unpack(data)


def _members_of_tar(data: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for info in tar:
            stream = tar.extractfile(info) if info.isfile() else None
            yield info.name, b"" if stream is None else stream.read()


def _rows_of_database(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the values of each table, some rows at a time: a long value lies in several pages of the file."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.text_factory = bytes
        # A database in memory has no write-ahead log, so bytes 18 and 19 must not ask for one.
        database.deserialize(data[:18] + b"\1\1" + data[20:])
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            quoted = table.decode(errors="replace").replace('"', '""')
            rows = database.execute(f'SELECT * FROM "{quoted}"')
            while some := rows.fetchmany(_NUM_ROWS):
                values = (value for row in some for value in row if value is not None)
                yield quoted, b"\n".join(v if isinstance(v, bytes) else str(v).encode() for v in values)


def _rows_of_parquet(data: bytes) -> Iterator[tuple[str, bytes]]:
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(io.BytesIO(data))
    yield "columns", table.schema_arrow.to_string(truncate_metadata=False).encode()
    for batch in table.iter_batches(_NUM_ROWS):
        yield "rows", json.dumps(batch.to_pylist(), default=str, ensure_ascii=False).encode(errors="surrogatepass")


def _records_of_wandb(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the records, which the blocks of the file cut."""
    from runs.transfer.trackers.wandb_log import HEADER, records

    if data.startswith(HEADER):
        yield from (("record", record) for record in records(data))
