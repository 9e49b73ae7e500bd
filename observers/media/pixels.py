"""Pixels and samples: the order of channels, the range of values, and their conversion to integers."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from observers.errors import MediaError
from observers.media.snapshots import Snapshot

__all__ = ["as_bytes", "as_integers", "check_pixels", "cut_off", "has_channels_first"]

# Floats this far outside of their range count as inside: rounding put them there.
_TOLERANCE = 1e-4


def has_channels_first(
    shape: tuple[int, ...], *, is_tensor: bool, channels: Container[int] = (1, 3, 4), num_axes: int = 3
) -> bool | None:
    """Tell whether the channels come first, as in an image (C, H, W); False for (H, W) and (H, W, C).

    Args:
        shape: The shape of an image or a sound.
        is_tensor: Where both ends could be channels, a tensor of torch has them first and an array of numpy last.
        channels: The possible numbers of channels.
        num_axes: The number of axes with channels: 3 for an image, 2 for a sound.

    Returns:
        None if no image, or no sound, has this shape.
    """
    first, last = (len(shape) == num_axes and shape[axis] in channels for axis in (0, -1))
    if 0 in shape or not any((first, last, len(shape) == num_axes - 1)):
        return None
    return first and (is_tensor or not last)


def check_pixels(kind: str, pixels: Snapshot) -> None:
    """Reject values that are not pixels; the range of those on a GPU is not known yet.

    Args:
        kind: Name of the class, for the message.
        pixels: The pixels, of any shape.

    Raises:
        MediaError: If they are neither uint8 nor bool nor floats from 0 to 1.
    """
    dtype = pixels.dtype
    if dtype not in ("uint8", "bool") and "float" not in dtype:
        raise MediaError(
            f"{kind}: got values of type {dtype}, expected uint8, bool, or floats from 0 to 1; convert them"
        )
    if not pixels.on_device and 0 not in pixels.shape and (outside := cut_off(pixels.array())):
        low, high = map(float, outside["cut_off_from"])
        raise MediaError(
            f"{kind}: got floats from {low:.6g} to {high:.6g}, expected 0 to 1; undo the normalization, scale "
            "them as (x - x.min()) / (x.max() - x.min()), or give uint8"
        )


def cut_off(values: np.ndarray, least: float = 0.0) -> dict[str, Any]:
    """Return the fact for `meta` that values are cut off: `cut_off_from` with the least and the greatest value.

    Args:
        values: An array that is not empty; only floats can be out of range.
        least: Lower end of the range, whose upper end is 1.

    Returns:
        An empty mapping if all values are inside; NaN is outside.
    """
    if values.dtype.kind != "f":
        return {}
    low, high = float(values.min()), float(values.max())
    return {} if low >= least - _TOLERANCE and high <= 1 + _TOLERANCE else {"cut_off_from": [str(low), str(high)]}


def as_bytes(pixels: np.ndarray) -> np.ndarray:
    """Convert pixels to uint8; floats outside of 0 to 1 are cut off.

    Args:
        pixels: uint8, bool, or floats, where 1 is full brightness and NaN is black; any shape.
    """
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind == "b":
        return pixels * np.uint8(255)
    return as_integers(pixels, 0.0, np.uint8)


def as_integers(values: np.ndarray, least: float, dtype: type[np.integer]) -> np.ndarray:
    """Convert floats to integers, so that 1 becomes the greatest integer; values out of range are cut off.

    Args:
        values: Floats of any shape; NaN becomes 0.
        least: Lower end of the range, 0 or -1.
        dtype: Type of the integers.
    """
    finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=1.0, neginf=least)
    return np.rint(finite.clip(least, 1) * np.iinfo(dtype).max).astype(dtype)
