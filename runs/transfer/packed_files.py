"""Contents of files that pack others, and the parts of files that cannot be searched.

Archives, databases of SQLite, Parquet, the logs of W&B, the chunks of PNG, the streams of PDF, and base64 are unpacked,
within a bound. What a file holds beside is bytes to search as they are, or pixels, sounds and numbers.
"""

from __future__ import annotations

import base64
import bz2
import contextlib
import gzip
import io
import json
import lzma
import re
import sqlite3
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from sacristan.runs.errors import UnsearchableError

MOST_BYTES = 2**29
TOO_LARGE = f"it holds more than {MOST_BYTES // 2**20} MiB"
# How each kind of compressed file is opened, and packed again, by its first bytes.
COMPRESSED: dict[bytes, tuple[Callable[[IO[bytes]], ByteStream], Callable[[bytes], bytes]]] = {
    b"\x1f\x8b": (lambda file: gzip.GzipFile(fileobj=file), lambda data: gzip.compress(data, mtime=0)),
    b"BZh": (bz2.BZ2File, bz2.compress),
    b"\xfd7zXZ": (lzma.LZMAFile, lzma.compress),
}
# Names of what is no file of its own.
PIECE = "(part)"
IN_BASE64 = "(part in base64)"
PACKED = b"PK\x03\x04"
# A run of base64, also over several lines, as in JSON, notebooks and mails.
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{8,}(?:(?:\\r)?(?:\\n|\r?\n)[ \t]*[A-Za-z0-9+/_-]{4,})*={0,2}")
_LINE_END = re.compile(rb"\\[rn]|\s")
# What the readers raise on a file that only begins like an archive.
_BROKEN = (
    OSError, EOFError, ValueError, RuntimeError, ImportError, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError,
    sqlite3.Error, struct.error, zlib.error, IndexError, KeyError,
)  # fmt: skip
_PARQUET = b"PAR1"
_DATABASE = b"SQLite format 3\0"
_PNG = b"\x89PNG\r\n\x1a\n"
_PDF = b"%PDF-"
_WANDB = b":W&B"
_HEADS = (*COMPRESSED, PACKED, _PARQUET, _DATABASE, _PNG, _PDF)
_NUM_ROWS = 1000
# Formats whose names and texts lie open, by their first bytes, and what else they hold.
_OPEN = {
    _PNG: "pixels", b"\xff\xd8\xff": "pixels", b"GIF8": "pixels", b"II*\0": "pixels", b"MM\0*": "pixels",
    b"RIFF": "pixels and sounds", b"\x1aE\xdf\xa3": "pixels and sounds", b"ID3": "sounds", b"OggS": "sounds",
    b"fLaC": "sounds", b"\x93NUMPY": "numbers", b"ply\n": "numbers",
    **{b"\x80" + bytes([protocol]): "numbers" for protocol in range(2, 6)},
}  # fmt: skip
PARTS = frozenset(_OPEN.values())
_OPEN_NAMES = re.compile(r"\.safetensors$|\.onnx$|tfevents|(^|/)metrics\.\w+$|(^|/)data/((weights|constants)/)?\w+$")
_STORAGE = re.compile(r"(^|/)data/((weights|constants)/)?\w+$")
_NUMBERS = re.compile(rb"'descr': '[<>|=]?[biufcmM?]\d*(\[\w+\])?'")


class ByteStream(Protocol):
    """A stream of the bytes of a packed file."""

    def read(self, size: int, /) -> bytes: ...


class Budget:
    """The number of bytes, `left`, that may still be unpacked from one file."""

    def __init__(self) -> None:
        self.left = MOST_BYTES

    def read(self, stream: ByteStream) -> bytes:
        """Return all bytes of a stream, unless there are too many."""
        data = stream.read(self.left + 1)
        if len(data) > self.left:
            raise UnsearchableError(TOO_LARGE)
        self.left -= len(data)
        return data


@contextlib.contextmanager
def unpacking() -> Iterator[None]:
    """Turn errors of damaged and encrypted archives in the block into an UnsearchableError."""
    try:
        yield
    except _BROKEN as error:
        raise UnsearchableError(f"it cannot be unpacked ({error or type(error).__name__})") from error


def part_left(name: str, data: bytes) -> str | None:
    """Return which part of a file is not searched, such as `pixels`; empty if none, None if all of it is not."""
    if data.startswith(_PDF):
        return None
    if data.startswith((*COMPRESSED, PACKED, _DATABASE, _PARQUET, _WANDB)) or is_tar(data) or is_text(data):
        return ""
    for head, part in _OPEN.items():
        if data.startswith(head):
            return part
    if data[4:8] == b"ftyp":
        return "pixels and sounds"
    return "numbers" if _OPEN_NAMES.search(name) else None


def numbers_from(name: str, data: bytes) -> int:
    """Return the offset of the numbers and packed bytes of a file, where a short word occurs by chance."""
    if data.startswith((*COMPRESSED, PACKED, _PNG)) or (name.endswith(IN_BASE64) and not is_text(data)):
        return 0
    if _STORAGE.search(name) and part_left(name, data) == "numbers":
        return 0
    if data.startswith(b"\x93NUMPY"):
        end = data.find(b"\n") + 1
        return end if _NUMBERS.search(data, 0, end) else len(data)
    return 8 + int.from_bytes(data[:8], "little") if name.endswith(".safetensors") else len(data)


def is_text(data: bytes) -> bool:
    """Tell whether data are text in UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def members(name: str, data: bytes, budget: Budget) -> Iterator[tuple[str, bytes]]:
    """Yield the members of an archive, the rows of a database, a table or a log, or the texts in a picture.

    Other files have none. An UnsearchableError means that the file cannot be unpacked completely.
    """
    with unpacking():
        yield from _members(name, data, budget)


def _members(name: str, data: bytes, budget: Budget) -> Iterator[tuple[str, bytes]]:
    for head, (opened, _) in COMPRESSED.items():
        if data.startswith(head):
            yield Path(name).stem, budget.read(opened(io.BytesIO(data)))
    if data.startswith(PACKED):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield PIECE, archive.comment
            for info in archive.infolist():
                with archive.open(info) as stream:
                    yield info.filename, budget.read(stream)
    elif is_tar(data):
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                extracted = tar.extractfile(member) if member.isfile() else None
                yield member.name, b"" if extracted is None else budget.read(extracted)
    elif data.startswith(_DATABASE):
        yield from _rows_of_database(data)
    elif data.startswith(_PARQUET):
        yield from _rows_of_parquet(data)
    elif data.startswith(_PNG):
        yield from _chunks_of_png(data, budget)
    elif data.startswith(_PDF):
        yield from _streams_of_pdf(data, budget)
    elif data.startswith(_WANDB):
        yield from _records_of_wandb(data)
    elif is_text(data):
        contents = [content for _, content in in_base64(data)]
        texts = [content for content in contents if is_text(content)]
        for some in (texts, [content for content in contents if not is_text(content)]):
            if some:
                yield IN_BASE64, (b"\n" if some is texts else b"\xff").join(some)
        yield from ((IN_BASE64, content) for content in contents if content.startswith(_HEADS))


def in_base64(data: bytes) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Yield the place of each run of base64 in a text, and its content."""
    for match in _BASE64.finditer(data):
        letters = _LINE_END.sub(b"", match[0]).rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
        letters = letters[: len(letters) - (len(letters) % 4 == 1)]
        yield match.span(), base64.b64decode(letters + b"=" * (-len(letters) % 4))


def is_tar(data: bytes) -> bool:
    """Tell whether data are a tar archive."""
    return data[257:262] == b"ustar"


def _rows_of_database(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the values of each table, some rows at a time: a long value lies in several pages of the file."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.text_factory = bytes
        # A database in memory has no write-ahead log, so bytes 18 and 19 must not ask for one.
        database.deserialize(data[:18] + b"\1\1" + data[20:])
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in [(b"sqlite_master",), *tables]:
            quoted = table.decode(errors="replace").replace('"', '""')
            rows = database.execute(f'SELECT * FROM "{quoted}"')
            while some := rows.fetchmany(_NUM_ROWS):
                values = [v if isinstance(v, bytes) else str(v).encode() for row in some for v in row if v is not None]
                yield PIECE, b"\n".join(values)
                if not all(map(is_text, values)):
                    raise UnsearchableError(f"the table {quoted!r} has binary values")


def _rows_of_parquet(data: bytes) -> Iterator[tuple[str, bytes]]:
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(io.BytesIO(data))
    yield PIECE, table.schema_arrow.to_string(truncate_metadata=False).encode()
    for batch in table.iter_batches(_NUM_ROWS):
        yield PIECE, json.dumps(batch.to_pylist(), default=str).encode()


def _chunks_of_png(data: bytes, budget: Budget) -> Iterator[tuple[str, bytes]]:
    """Yield all but the pixels; text, also compressed, and a profile in hexadecimal digits, as ImageMagick writes it.

    Source: https://www.w3.org/TR/png-3 (section 11)
    """
    at, kind = len(_PNG), b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, at)
        content = data[at + 8 : at + 8 + length]
        at += 12 + length
        if kind in (b"IDAT", b"fdAT"):
            continue
        keyword, _, rest = content.partition(b"\0")
        if kind in (b"zTXt", b"iCCP"):
            content = keyword + b"\n" + _inflated(rest[1:], budget)
        elif kind == b"iTXt":
            language, translated, text = rest[2:].split(b"\0", 2)
            text = _inflated(text, budget) if rest[:1] == b"\1" else text
            content = b"\n".join((keyword, language, translated, text))
        yield PIECE, content
        if b"Raw profile type" in keyword:
            yield PIECE, bytes.fromhex("".join(content.decode("latin-1").split("\n")[4:]).replace("\0", ""))
    if data[at:]:
        yield "after its end", data[at:]


def _streams_of_pdf(data: bytes, budget: Budget) -> Iterator[tuple[str, bytes]]:
    """Yield what FlateDecode packed, and the letters of strings in pieces or in hexadecimal digits.

    That is not all: fonts may number their letters as they like, so no PDF counts as searched.
    """
    contents = [data]
    for match in re.finditer(rb"stream\r?\n(.*?)endstream", data, re.DOTALL):
        with contextlib.suppress(zlib.error):
            contents.append(_inflated(match[1], budget))
            yield PIECE, contents[-1]
    for content in contents:
        for pieces in re.finditer(rb"\[((?:[^\[\]()]|\((?:\\.|[^\\)])*\)){1,4096})\]\s*TJ", content, re.DOTALL):
            yield PIECE, b"".join(re.findall(rb"\(((?:\\.|[^\\)])*)\)", pieces[1], re.DOTALL))
        for digits in re.finditer(rb"<([0-9A-Fa-f\s]{4,})>", content):
            letters = b"".join(digits[1].split())
            yield PIECE, bytes.fromhex(letters[: len(letters) // 2 * 2].decode())


def _inflated(data: bytes, budget: Budget) -> bytes:
    unpacked = zlib.decompressobj().decompress(data, budget.left + 1)
    return budget.read(io.BytesIO(unpacked))


def _records_of_wandb(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the records, which span the blocks of the file."""
    from sacristan.runs.transfer.trackers.wandb_files import records

    damages: list[tuple[int, int]] = []
    yield from ((PIECE, record) for record in records(data, damages))
    if damages:
        raise EOFError(f"a damaged record at byte {damages[0][0]}")
