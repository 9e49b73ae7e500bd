"""Checksums of the points of a run, by which readers notice what the disk has damaged since they were written.

`metrics.sums` beside `metrics.bin` has an entry for each block of points that was appended, or for the parts of a
large one: number of its first point (u8), how many points (u4), the CRC-32 of their bytes, and the CRC-32 of the entry
itself (u4 each, little-endian). An entry is appended once its block is there. Points without an entry are not verified,
and taken as they are: the last ones of a process that was killed in between, and those of records without such a file.
"""

from __future__ import annotations

import bisect
import struct
import zlib
from pathlib import Path

import numpy as np

from observers.record.regular_file import open_regular

__all__ = ["ENTRY_BYTES", "Block", "blocks_in", "damaged", "entries_of", "read_blocks"]

_ENTRY = struct.Struct("<QII")
_OWN_SUM = struct.Struct("<I")
ENTRY_BYTES = _ENTRY.size + _OWN_SUM.size
# A reader of some points has to read the whole of the blocks that they are in.
_MAX_POINTS = 2**16

# First point, number of points, checksum.
Block = tuple[int, int, int]


def entries_of(data: bytes | memoryview, start: int, point_bytes: int) -> bytes:
    """Return the entries of points that are appended.

    Args:
        data: The points.
        start: How many points come before them.
        point_bytes: Bytes of a point.
    """
    view, size = memoryview(data), _MAX_POINTS * point_bytes
    entries = bytearray()
    for offset in range(0, len(view), size):
        part = view[offset : offset + size]
        entry = _ENTRY.pack(start + offset // point_bytes, len(part) // point_bytes, zlib.crc32(part))
        entries += entry + _OWN_SUM.pack(zlib.crc32(entry))
    return bytes(entries)


def blocks_in(entries: bytes | memoryview) -> list[Block]:
    """Return the blocks that entries tell of; one that is damaged itself, or torn, tells nothing."""
    found = []
    for at in range(0, len(entries) - ENTRY_BYTES + 1, ENTRY_BYTES):
        if zlib.crc32(entries[at : at + _ENTRY.size]) == _OWN_SUM.unpack_from(entries, at + _ENTRY.size)[0]:
            found.append(_ENTRY.unpack_from(entries, at))
    return found


def read_blocks(path: Path, start: int = 0, stop: int | None = None) -> list[Block]:
    """Return the blocks that points `start` to `stop` are in, in order; none if there is no file.

    Of a long file the entries of those alone are read.
    """
    try:
        with open_regular(path) as stream:
            size = stream.seek(0, 2)
            if stop is None:
                stream.seek(0)
                return [block for block in blocks_in(stream.read(size)) if block[0] + block[1] > start]

            def first(number: int) -> int:
                stream.seek(number * ENTRY_BYTES)
                return int.from_bytes(stream.read(8), "little")

            numbers = range(size // ENTRY_BYTES)
            # The block before the one behind `start` has it.
            low = max(0, bisect.bisect_right(numbers, start, key=first) - 1)
            high = max(low, bisect.bisect_left(numbers, stop, key=first))
            stream.seek(low * ENTRY_BYTES)
            found = blocks_in(stream.read((high - low) * ENTRY_BYTES))
    except FileNotFoundError:
        return []
    return [block for block in found if block[0] < stop and block[0] + block[1] > start]


def damaged(blocks: list[Block], points: np.ndarray, start: int) -> list[tuple[int, int]]:
    """Return first point and end of each block whose points are not as they were written.

    Args:
        blocks: Those to verify; one of which not all points are given is passed over.
        points: (n,) points.
        start: The number of the first one.
    """
    found = []
    for first, count, checksum in blocks:
        low, high = first - start, first + count - start
        if low >= 0 and high <= len(points) and zlib.crc32(points[low:high].tobytes()) != checksum:
            found.append((first, first + count))
    return found
