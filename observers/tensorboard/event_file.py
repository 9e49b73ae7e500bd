"""TensorBoard's event files: appended records with lengths and checksums.

A record is its length (8 bytes), the checksum of the length, the data, and the checksum of the data. TensorBoard's own
RecordWriter computes checksums in Python, thousands of times slower, and loses records when the disk is full.
Source: https://www.tensorflow.org/tutorials/load_data/tfrecord (TFRecords format details)
"""

from __future__ import annotations

import functools
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from sacristan.observers.record.append_file import AppendFile

_log = logging.getLogger(__name__)

_PIECE_BYTES = 16 * 2**20
_MAX_PENDING_BYTES = 32 * 2**20
_HEAD_BYTES, _SUM_BYTES = 12, 4


class EventFile:
    """Appends records; on a full disk they are retried up to a bound, beyond which they are `num_lost`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_lost = 0
        self._file = AppendFile(path, 0)
        self._records: list[bytes] = []
        self._warned = False

    def add(self, data: bytes) -> None:
        """Add a record, which `flush` writes."""
        self._records.append(b"".join((_head(len(data)), data, _masked(data))))

    def follow(self, folder: Path) -> None:
        self.path = self._file.path = folder / self.path.name

    def flush(self) -> None:
        """Write the added records, and those that failed before; recreate the file if it was deleted."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self._file.is_gone():
                self._file.recreate(self.path)
            self._file.append(b"")
        except OSError as error:
            self._warn(error)
        for count, piece in self._pieces():
            # Within the bound of the file, which would drop the half of a record.
            if self._file.num_pending_bytes and self._file.num_pending_bytes + len(piece) > _MAX_PENDING_BYTES:
                self.num_lost += count
                continue
            try:
                self._file.append(piece)
            except OSError as error:
                self._warn(error)

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield the added records in pieces of bounded size, with the number of records in each piece."""
        records, self._records = self._records, []
        piece: list[bytes] = []
        size = 0
        for record in records:
            if piece and size + len(record) > _PIECE_BYTES:
                yield len(piece), b"".join(piece)
                piece, size = [], 0
            piece.append(record)
            size += len(record)
        if piece:
            yield len(piece), b"".join(piece)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("%s cannot be written (%s); training continues, and writing is retried", self.path, error)

    def close(self) -> bool:
        """Write the remaining records, and close the file; return whether it has all of them."""
        self.flush()
        self._file.close()
        is_whole = not (self.num_lost or self._file.num_pending_bytes)
        if not is_whole:
            _log.error("%s: not all events could be written; the run's own record has them", self.path)
        return is_whole


@functools.lru_cache(maxsize=1024)
def _head(length: int) -> bytes:
    data = struct.pack("<Q", length)
    return data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def whole_records(path: Path, damages: list[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the data of records with correct checksums; `damages` receives the bounds of damaged parts."""
    with path.open("rb") as stream:
        at, size = 0, path.stat().st_size
        while at < size:
            data = _record(stream, at, size)
            if data is not None:
                yield data
                at += _HEAD_BYTES + len(data) + _SUM_BYTES
                continue
            start, at = at, _next_record(stream, at, size)
            if damages and damages[-1][1] == start:
                start = damages.pop()[0]
            damages.append((start, at))


def _record(stream: BinaryIO, at: int, size: int) -> bytes | None:
    """Return the data of the record at a place; None if none is whole there."""
    length = _length(stream, at)
    if length is None or at + _HEAD_BYTES + length + _SUM_BYTES > size:
        return None
    data, checksum = stream.read(length), stream.read(_SUM_BYTES)
    return data if _masked(data) == checksum else None


def _length(stream: BinaryIO, at: int) -> int | None:
    stream.seek(at)
    head = stream.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES or _masked(head[:8]) != head[8:]:
        return None
    return int.from_bytes(head[:8], "little")


def _next_record(stream: BinaryIO, at: int, size: int) -> int:
    """Return the place of the first whole record after a damaged one; the file's size if there is none."""
    length = _length(stream, at)
    if length is not None and _record(stream, after := at + _HEAD_BYTES + length + _SUM_BYTES, size) is not None:
        return after
    # Lengths below 4 GB have four zeros, four bytes after their start.
    begin = at + 1
    while begin + _HEAD_BYTES <= size:
        stream.seek(begin)
        piece = stream.read(_PIECE_BYTES)
        offset = piece.find(bytes(4), 4)
        while offset != -1 and offset + 8 <= len(piece):
            start = offset - 4
            is_head = _masked(piece[start : start + 8]) == piece[start + 8 : start + 12]
            if is_head and _record(stream, begin + start, size) is not None:
                return begin + start
            offset = piece.find(bytes(4), offset + 1)
        if len(piece) < _PIECE_BYTES:
            break
        begin += len(piece) - _HEAD_BYTES + 1
    return size
