"""PLY files of points, binary and little-endian, as `PointCloud` writes them; other programs can open them.

Source: http://paulbourke.net/dataformats/ply
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

__all__ = ["PlyHeader", "ply_bytes", "read_header", "read_points"]

_PLACES = [(name, "<f4") for name in ("x", "y", "z")]
_COLORS = [(name, "u1") for name in ("red", "green", "blue")]
_TYPES = {"<f4": "float", "u1": "uchar"}
_MAX_HEADER = 1024
_PIECE_POINTS = 2**16


@dataclasses.dataclass(frozen=True)
class PlyHeader:
    """The header of a PLY file, `num_bytes` long."""

    num_points: int
    has_colors: bool
    num_bytes: int


def ply_bytes(points: np.ndarray, colors: np.ndarray | None = None) -> bytes:
    """Encode points (n, 3) float32, with RGB colours (n, 3) uint8 if there are any, as a PLY file."""
    rows = np.empty(len(points), _dtype(colors is not None))
    for axis in range(3):
        rows[_PLACES[axis][0]] = points[:, axis]
        if colors is not None:
            rows[_COLORS[axis][0]] = colors[:, axis]
    return _head(len(points), colors is not None) + rows.tobytes()


def read_header(stream: BinaryIO) -> PlyHeader:
    """Read the header of a file, and check it against the length of the file; no point is read.

    The stream must be at its start; its position afterwards is undefined. Raises ValueError if the file is cut off, or
    `ply_bytes` did not write it.
    """
    start = stream.read(_MAX_HEADER)
    lines = start.split(b"\n", 3)
    count = lines[2].removeprefix(b"element vertex ") if len(lines) > 3 else b""
    if not count.isdigit() or len(count) > 12:
        raise ValueError(f"got data that begin with {start[:16]!r}, expected a PLY file as PointCloud writes it")
    num_points = int(count)
    for has_colors in (False, True):
        head = _head(num_points, has_colors)
        if start.startswith(head):
            break
    else:
        raise ValueError(
            "got a PLY file of another form, expected x, y, z and perhaps red, green, blue, as PointCloud has"
        )
    stream.seek(0, os.SEEK_END)
    num_there = (stream.tell() - len(head)) // _dtype(has_colors).itemsize
    if num_there != num_points:
        raise ValueError(f"got a PLY file with {num_there} points, expected {num_points}, as its header says")
    return PlyHeader(num_points, has_colors, len(head))


def read_points(stream: BinaryIO, stride: int = 1) -> tuple[np.ndarray, np.ndarray | None]:
    """Read every `stride`-th point of a file: points (n, 3) float32, and colours (n, 3) uint8 or None.

    Memory holds little more than these. The stream must be at its start.
    """
    header = read_header(stream)
    stream.seek(header.num_bytes)
    rows = np.concatenate([*_pieces(stream, header, stride)] or [np.empty(0, _dtype(header.has_colors))])
    points = np.stack([rows[name] for name, _ in _PLACES], axis=1)
    return points, np.stack([rows[name] for name, _ in _COLORS], axis=1) if header.has_colors else None


def _pieces(stream: BinaryIO, header: PlyHeader, stride: int) -> Iterator[np.ndarray]:
    dtype = _dtype(header.has_colors)
    step = stride * max(1, _PIECE_POINTS // stride)
    for start in range(0, header.num_points, step):
        data = stream.read(min(step, header.num_points - start) * dtype.itemsize)
        yield np.frombuffer(data, dtype, len(data) // dtype.itemsize)[::stride].copy()


def _dtype(has_colors: bool) -> np.dtype:
    return np.dtype(_PLACES + _COLORS * has_colors)


def _head(num_points: int, has_colors: bool) -> bytes:
    properties = [f"property {_TYPES[type_]} {name}" for name, type_ in _PLACES + _COLORS * has_colors]
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {num_points}", *properties, "end_header", ""]
    return "\n".join(lines).encode()
