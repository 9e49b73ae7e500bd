"""PNG files of 8-bit arrays, written with what Python has."""

from __future__ import annotations

import struct
import zlib

import numpy as np

__all__ = ["SIGNATURE", "png_bytes", "png_size"]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
_UP = 2


def png_bytes(pixels: np.ndarray) -> bytes:
    """Return a PNG file of an image.

    Source: https://www.w3.org/TR/png-3 (sections 5 and 9)

    Args:
        pixels: (height, width, channels) uint8; 1 channel is grey, 3 are RGB, 4 are RGBA.
    """
    height, width, channels = pixels.shape
    # Each row as the difference from the one above, which packs better; the byte before a row says so.
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 0] = _UP
    flat = pixels.reshape(height, -1)
    rows[0, 1:] = flat[0]
    np.subtract(flat[1:], flat[:-1], out=rows[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_size(data: bytes) -> tuple[int, int]:
    """Return width and height of a PNG file.

    Raises:
        ValueError: If it is none.
    """
    if data[:8] != SIGNATURE or data[12:16] != b"IHDR" or len(data) < 24:
        raise ValueError(f"got data that begin with {data[:8]!r}, expected a PNG file")
    return struct.unpack(">II", data[16:24])
