"""Arrays of media: copies as they are now, channels, ranges and integers of pixels and samples, and PNG files.

Tensors on a GPU are copied without waiting for the GPU. A masked value has no content: what its memory holds is never
recorded. PNG files of 8-bit arrays, still and animated, are made by `zlib` alone: twice as fast as Pillow, which is an
extra.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Container, Iterable
from typing import Any

from sacristan.configs.packages import numpy as np
from sacristan.observers.errors import MediaError


class Snapshot:
    """A copy of an array, of a tensor (recognized by its methods: torch is not imported), or of nested lists.

    A tensor on a GPU is copied there, and fetched by `array`, which waits for it. `dtype` is the name of the type, such
    as `bfloat16`. Raises ValueError or TypeError if the values form no array, or some are masked.
    """

    def __init__(self, values: Any) -> None:
        self._ready: Any = None
        self._values: Any
        if hasattr(values, "detach"):
            values = values.detach()
            self.dtype = str(values.dtype).removeprefix("torch.")
            self.on_device = values.device.type != "cpu"
            self._values = values.clone() if self.on_device else to_numpy(values).copy()
            self._ready = _event_behind(values) if values.device.type == "cuda" else None
            self.num_bytes = values.numel() * values.element_size()
        else:
            _reject_masked(values)
            self._values = of_known_type(np.array(values))
            self.dtype, self.on_device, self.num_bytes = self._values.dtype.name, False, self._values.nbytes
        self.shape = tuple(self._values.shape)

    def array(self) -> np.ndarray:
        """Return the values; wait for those on a GPU, and free its memory."""
        if self.on_device:
            if self._ready is not None:
                self._ready.synchronize()
            self._values, self.on_device, self._ready = to_numpy(self._values.cpu()), False, None
        return self._values


def to_numpy(tensor: Any) -> np.ndarray:
    """Return a dense tensor on the CPU as an array; types that numpy lacks, such as bfloat16, become float32."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    try:
        return tensor.resolve_conj().resolve_neg().numpy()
    except TypeError:
        return tensor.float().numpy()


def of_known_type(array: np.ndarray) -> np.ndarray:
    """Convert an array of a type that other packages add to numpy, such as bfloat16, to one of numpy's own."""
    if array.dtype.kind == "V" and array.dtype.names is None and "float" in array.dtype.name:
        return array.astype(np.float32)
    return array


def is_masked_array(value: Any) -> bool:
    """Tell whether a value is a masked array, whose module takes 10 ms to import."""
    return "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray)


def is_missing(value: Any) -> bool:
    """Tell whether a single value is masked, or pandas' NA or NaT."""
    if is_masked_array(value):
        return value.ndim == 0 and value.dtype.names is None and bool(np.ma.getmaskarray(value).all())
    pandas = sys.modules.get("pandas")
    return pandas is not None and (value is getattr(pandas, "NA", None) or value is getattr(pandas, "NaT", None))


def _reject_masked(values: Any) -> None:
    for each in values if isinstance(values, list | tuple) else (values,):
        if is_masked_array(each) and np.ma.getmaskarray(each).any():
            raise ValueError("some values are masked; fill them, such as by x.filled(0)")


def _event_behind(tensor: Any) -> Any:
    """Return an event after the copy in the current stream: the thread of heartbeats fetches it in another stream."""
    cuda = sys.modules["torch"].cuda
    event = cuda.Event()
    event.record(cuda.current_stream(tensor.device))
    return event


# ---------------------------------------------------------------------- pixels and samples

# Floats this far outside of their range count as inside: rounding put them there.
_TOLERANCE = 1e-4


def has_channels_first(
    shape: tuple[int, ...], *, is_tensor: bool, channels: Container[int] = (1, 3, 4), num_axes: int = 3
) -> bool | None:
    """Tell whether the channels come first, as in an image (C, H, W); False for (H, W) and (H, W, C).

    Where both ends could be channels, a tensor of torch has them first and an array of numpy last. `num_axes` is 3 for
    an image, 2 for a sound. None means that no image, or no sound, has this shape.
    """
    first, last = (len(shape) == num_axes and shape[axis] in channels for axis in (0, -1))
    if 0 in shape or not any((first, last, len(shape) == num_axes - 1)):
        return None
    return first and (is_tensor or not last)


def check_pixels(kind: str, pixels: Snapshot) -> None:
    """Reject pixels that are not uint8, bool, or floats from 0 to 1; the range of those on a GPU is not known yet."""
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
    """Return `cut_off_from`, the least and greatest float, if any is NaN or outside of `least` to 1; else nothing."""
    if values.dtype.kind != "f":
        return {}
    low, high = float(values.min()), float(values.max())
    return {} if low >= least - _TOLERANCE and high <= 1 + _TOLERANCE else {"cut_off_from": [str(low), str(high)]}


def as_bytes(pixels: np.ndarray) -> np.ndarray:
    """Convert pixels to uint8: 1.0 is full brightness, NaN is black, and floats outside of 0 to 1 are cut off."""
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind == "b":
        return pixels * np.uint8(255)
    return as_integers(pixels, 0.0, np.uint8)


def as_integers(values: np.ndarray, least: float, dtype: type[np.integer]) -> np.ndarray:
    """Convert floats from `least` (0 or -1) to 1 to integers: 1 becomes the greatest, NaN 0; cut off the others."""
    finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=1.0, neginf=least)
    return np.rint(finite.clip(least, 1) * np.iinfo(dtype).max).astype(dtype)


SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
_UP = 2


def png_bytes(pixels: np.ndarray) -> bytes:
    """Encode (height, width, channels) uint8, grey, RGB or RGBA, as PNG (https://www.w3.org/TR/png-3)."""
    return _file([_chunk(b"IHDR", _header(pixels)), _chunk(b"IDAT", _packed(pixels))])


def animated_png_bytes(frames: Iterable[np.ndarray], fps: float) -> bytes:
    """Encode frames, (height, width, channels) uint8, as an endless animated PNG; `fps` is from 0.01 to 90.

    Each frame but the first is the rectangle that differs. Source: https://www.w3.org/TR/png-3 (section 11.3.6)
    """
    from fractions import Fraction

    rate = Fraction(fps).limit_denominator(700)  # both parts fit 16 bits
    delay = struct.pack(">HH", rate.denominator, rate.numerator)
    chunks: list[bytes] = []
    head, before = b"", None
    num_frames = number = 0
    for frame in frames:
        top, left, part = (0, 0, frame) if before is None else _changed(before, frame)
        height, width = part.shape[:2]
        control = struct.pack(">IIIII", number, width, height, left, top)
        chunks.append(_chunk(b"fcTL", control + delay + bytes(2)))
        number += 1
        if before is None:
            head = _header(frame)
            chunks.append(_chunk(b"IDAT", _packed(part)))
        else:
            chunks.append(_chunk(b"fdAT", struct.pack(">I", number) + _packed(part)))
            number += 1
        before, num_frames = frame, num_frames + 1
    return _file([_chunk(b"IHDR", head), _chunk(b"acTL", struct.pack(">II", num_frames, 0)), *chunks])


def _changed(before: np.ndarray, frame: np.ndarray) -> tuple[int, int, np.ndarray]:
    """Return top, left and pixels of the smallest rectangle that holds every difference; at least one pixel."""
    differs = (before != frame).any(axis=2)
    rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    if not len(rows):
        return 0, 0, frame[:1, :1]
    return int(rows[0]), int(columns[0]), frame[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _header(pixels: np.ndarray) -> bytes:
    height, width, channels = pixels.shape
    return struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)


def _packed(pixels: np.ndarray) -> bytes:
    """Pack pixels, each row as the difference from the one above, which its first byte says; this packs better."""
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 0] = _UP
    flat = pixels.reshape(height, -1)
    rows[0, 1:] = flat[0]
    np.subtract(flat[1:], flat[:-1], out=rows[1:, 1:])
    return zlib.compress(rows.tobytes(), 6)


def _file(chunks: list[bytes]) -> bytes:
    return SIGNATURE + b"".join(chunks) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_size(data: bytes) -> tuple[int, int]:
    """Read width and height from a PNG file, or from its first 24 bytes."""
    if data[:8] != SIGNATURE or data[12:16] != b"IHDR" or len(data) < 24:
        raise ValueError(f"got data that begin with {data[:8]!r}, expected a PNG file")
    return struct.unpack(">II", data[16:24])
