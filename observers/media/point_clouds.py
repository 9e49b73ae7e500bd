"""Point clouds that a run can log, as binary, little-endian PLY files, which other programs can open.

Source: http://paulbourke.net/dataformats/ply
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

from sacristan.configs.packages import numpy as np
from sacristan.observers.errors import MediaError
from sacristan.observers.media.arrays import Snapshot, as_bytes, check_pixels, cut_off
from sacristan.observers.media.kinds import Media, are_numbers, check_size, snapshot
from sacristan.observers.record.media_files import Content

_BYTES_OF_POINT = 15


class PointCloud(Media):
    """Points in space, kept as a binary PLY file that other programs can open.

        _run.log_media("scan", PointCloud(points, colors), step)

    Args:
        points: (N, 3) x, y and z: an array or a tensor of finite numbers, kept with 32 bits.
        colors: (N, 3) red, green and blue: uint8, or floats from 0 to 1; None for points without colours.
        caption: Text below it.

    Raises:
        MediaError: If shape, type or range is another one, or there are more than 35 million points. The values of a
            tensor on a GPU are known only when the file is made; points that are not finite are then left out, and
            `meta` has their number: `left_out: 5`.
    """

    kind = "point_cloud"

    def __init__(self, points: Any, colors: Any = None, caption: str | None = None) -> None:
        self._points = snapshot(points, "PointCloud")
        self._colors = None if colors is None else snapshot(colors, "PointCloud")
        self.caption = caption if caption is None else str(caption)
        shape = self._points.shape
        if len(shape) != 2 or shape[1] != 3 or not shape[0] or not are_numbers(self._points.dtype):
            raise MediaError(
                f"PointCloud: got points of shape {shape} and type {self._points.dtype}, expected numbers of shape "
                "(N, 3) with N of at least 1: x, y and z of each"
            )
        check_size("PointCloud", _BYTES_OF_POINT * shape[0])
        self.num_bytes = self._points.num_bytes
        if self._colors is not None:
            _check_colors(self._colors, shape)
            self.num_bytes += self._colors.num_bytes
        if not self._points.on_device and not (good := _are_finite(_as_floats(self._points.array()))).all():
            raise MediaError(
                f"PointCloud: got NaN, infinities or numbers beyond 32 bits in {(~good).sum()} of {len(good)} points, "
                "expected finite ones; leave those out, such as by points[np.isfinite(points).all(1)]"
            )

    def encode(self) -> Content:
        points = _as_floats(self._points.array())
        colors, facts = None, {}
        if self._colors is not None:
            values = self._colors.array()
            colors, facts = as_bytes(values), cut_off(values)
        good = _are_finite(points)
        if not good.all():
            facts["left_out"] = int((~good).sum())
            points, colors = points[good], None if colors is None else colors[good]
        meta = self._described(**facts, num_points=len(points), has_colors=colors is not None)
        return Content(ply_bytes(points, colors), ".ply", "model/ply", meta)


def _check_colors(colors: Snapshot, shape: tuple[int, ...]) -> None:
    if colors.shape != shape:
        raise MediaError(
            f"PointCloud: got colors of shape {colors.shape} for points of shape {shape}, expected the same: red, "
            "green and blue of each"
        )
    check_pixels("PointCloud: colors", colors)


def _as_floats(points: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return points.astype(np.float32)


def _are_finite(points: np.ndarray) -> np.ndarray:
    return np.isfinite(points).all(axis=1)


# ---------------------------------------------------------------------- PLY files

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
    """Read the header from the start of a file; raise ValueError if the file is cut off or not by `ply_bytes`."""
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
    """Read every `stride`-th point from the start of a file: points (n, 3) float32, colours (n, 3) uint8 or None."""
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
