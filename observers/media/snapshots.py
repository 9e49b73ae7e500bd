"""Copies of arrays as they are now; tensors on a GPU are copied without waiting for the GPU.

A masked value has no content: what its memory holds is never recorded.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["Snapshot", "is_missing", "of_known_type", "to_numpy"]


class Snapshot:
    """A copy of an array, of a tensor (recognized by its methods: torch is not imported), or of nested lists.

    A tensor on a GPU is copied there, and fetched by `array`, which waits for it. `dtype` is the name of the type, such
    as `float32` or `bfloat16`.

    Raises ValueError or TypeError if the values form no array, such as lists of different lengths, or some are masked.
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


def is_missing(value: Any) -> bool:
    """Tell whether a single value is masked, or pandas' NA or NaT."""
    if isinstance(value, np.ma.MaskedArray):
        return value.ndim == 0 and value.dtype.names is None and bool(np.ma.getmaskarray(value).all())
    pandas = sys.modules.get("pandas")
    return pandas is not None and (value is getattr(pandas, "NA", None) or value is getattr(pandas, "NaT", None))


def _reject_masked(values: Any) -> None:
    for each in values if isinstance(values, list | tuple) else (values,):
        if isinstance(each, np.ma.MaskedArray) and np.ma.getmaskarray(each).any():
            raise ValueError("some values are masked; fill them, such as by x.filled(0)")


def _event_behind(tensor: Any) -> Any:
    """Return an event after the copy in the current stream: the thread of heartbeats fetches it in another stream."""
    cuda = sys.modules["torch"].cuda
    event = cuda.Event()
    event.record(cuda.current_stream(tensor.device))
    return event
