"""The log in W&B's `.wandb` files: a header of 7 bytes, and records in blocks, as in LevelDB.

Source: https://github.com/google/leveldb/blob/main/doc/log_format.md, with CRC-32 instead of CRC-32C
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["HEADER", "LogWriter", "records"]

HEADER = b":W&B"
# The magic number and the version of the form.
_HEADER_REST = b"\xe1\xbe\x00"
_HEADER_BYTES, _BLOCK_BYTES, _HEAD = 7, 32768, struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records(data: bytes, damages: list[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the intact records of a file, also those after a damaged part.

    `damages` gets the first byte of each damaged part and the first after it.
    """
    at, begin = _HEADER_BYTES, 0
    bad: int | None = None
    parts: list[bytes] = []
    while at < len(data):
        room = _BLOCK_BYTES - at % _BLOCK_BYTES
        if room < _HEAD.size:  # padding
            at += room
            continue
        kind, piece = _piece(data, at) or (0, b"")
        if parts and kind not in (_MIDDLE, _LAST):  # its end is missing
            bad, parts = begin if bad is None else bad, []
        if not kind or (kind in (_MIDDLE, _LAST) and not parts):
            bad = at if bad is None else bad
        elif kind in (_FULL, _FIRST):
            if bad is not None:
                damages.append((bad, at))
            bad, begin, parts = None, at, [piece]
        else:
            parts.append(piece)
        if kind in (_FULL, _LAST) and parts:
            yield b"".join(parts)
            parts = []
        at += _HEAD.size + len(piece) if kind else _distance(data, at, room)
    bad = begin if parts and bad is None else bad
    if bad is not None:
        damages.append((bad, len(data)))


def _piece(data: bytes, at: int) -> tuple[int, bytes] | None:
    """Return the kind and the content of the piece at a place; None if it is damaged or cut off."""
    if at + _HEAD.size > len(data):
        return None
    checksum, length, kind = _HEAD.unpack_from(data, at)
    piece = data[at + _HEAD.size : at + _HEAD.size + length]
    is_whole = len(piece) == length and _FULL <= kind <= _LAST and _checksum(kind, piece) == checksum
    return (kind, piece) if is_whole else None


def _distance(data: bytes, at: int, room: int) -> int:
    """Return the distance to the next piece after a damaged one: right behind it, or at the start of the next block."""
    length = _HEAD.unpack_from(data, at)[1] if at + _HEAD.size <= len(data) else room
    after = _HEAD.size + length
    return after if after + _HEAD.size <= room and _piece(data, at + after) is not None else room


class LogWriter:
    """Writes records to a new file."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._at = stream.write(HEADER + _HEADER_REST)

    def add(self, record: bytes) -> None:
        """Append a record, split at the blocks that it spans."""
        is_first, start = True, 0
        while is_first or start < len(record):
            room = _BLOCK_BYTES - self._at % _BLOCK_BYTES
            if room < _HEAD.size:
                self._at += self._stream.write(bytes(room))
                continue
            piece = record[start : start + room - _HEAD.size]
            start += len(piece)
            is_last = start == len(record)
            kind = (_FULL if is_last else _FIRST) if is_first else (_LAST if is_last else _MIDDLE)
            self._at += self._stream.write(_HEAD.pack(_checksum(kind, piece), len(piece), kind) + piece)
            is_first = False


def _checksum(kind: int, piece: bytes) -> int:
    return zlib.crc32(piece, zlib.crc32(bytes([kind])))
