"""Point clouds that a run can log."""

from __future__ import annotations

from typing import Any

import numpy as np

from sacristan.observers.errors import MediaError
from sacristan.observers.media.kinds import Media, are_numbers, check_size, snapshot
from sacristan.observers.media.pixels import as_bytes, check_pixels, cut_off
from sacristan.observers.media.ply import ply_bytes
from sacristan.observers.media.snapshots import Snapshot
from sacristan.observers.record.media_files import Content

__all__ = ["PointCloud"]

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
