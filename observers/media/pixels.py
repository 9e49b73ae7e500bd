"""Pixels of images and videos: the order of their channels, and the values that are colours."""

from __future__ import annotations

from typing import Any

import numpy as np

from observers.errors import MediaError
from observers.media.snapshots import Snapshot

__all__ = ["as_bytes", "check_pixels", "cut_off", "has_channels_first"]

# Floats that a calculation put this far outside of [0, 1] are meant to be inside.
_TOLERANCE = 1e-4


def has_channels_first(shape: tuple[int, ...], *, is_tensor: bool) -> bool | None:
    """Tell whether an image of that shape is (C, H, W), and not (H, W) or (H, W, C); None if it is no image.

    Where both ends could be channels, a tensor of torch has them first and an array of numpy last.
    """
    last, first = len(shape) == 3 and shape[-1] in (1, 3, 4), len(shape) == 3 and shape[0] in (1, 3, 4)
    if 0 in shape or not (len(shape) == 2 or last or first):
        return None
    return first and (is_tensor or not last)


def check_pixels(what: str, pixels: Snapshot) -> None:
    """Refuse values that are not pixels; the range of those on a GPU is not known yet.

    Args:
        what: The kind, for the error.
        pixels: The pixels.

    Raises:
        MediaError: If they are neither uint8 nor bool nor floats from 0 to 1.
    """
    dtype = pixels.dtype
    if dtype not in ("uint8", "bool") and "float" not in dtype:
        raise MediaError(
            f"{what}: got values of type {dtype}, expected uint8, bool, or floats from 0 to 1; convert them"
        )
    if not pixels.on_device and 0 not in pixels.shape and cut_off(pixels.array()):
        low, high = _range(pixels.array())
        raise MediaError(
            f"{what}: got floats from {low:.6g} to {high:.6g}, expected 0 to 1; undo the normalization, scale "
            "them as (x - x.min()) / (x.max() - x.min()), or give uint8"
        )


def cut_off(pixels: np.ndarray) -> dict[str, Any]:
    """Return what `meta` says of pixels that are outside of 0 to 1; nothing if none is."""
    if pixels.dtype == np.uint8 or pixels.dtype.kind == "b":
        return {}
    low, high = _range(pixels)
    return {} if low >= -_TOLERANCE and high <= 1 + _TOLERANCE else {"cut_off_from": [str(low), str(high)]}


def as_bytes(pixels: np.ndarray) -> np.ndarray:
    """Return pixels as uint8; what is outside of 0 to 1 is cut off."""
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind == "b":
        return pixels * np.uint8(255)
    whole = np.nan_to_num(pixels.astype(np.float64), nan=0.0, posinf=1.0, neginf=0.0)
    return np.rint(whole.clip(0, 1) * 255).astype(np.uint8)


def _range(values: np.ndarray) -> tuple[float, float]:
    """Return the least and the greatest value; NaN if there is one."""
    return float(values.min()), float(values.max())
