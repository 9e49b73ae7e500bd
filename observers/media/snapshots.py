"""Copies of arrays as they are now; tensors on a GPU are copied without waiting for the GPU."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["Snapshot"]


class Snapshot:
    """A copy of an array, of a tensor (recognized by its methods: torch is not imported), or of nested lists.

    A tensor on a GPU is copied there, and fetched by `array`, which waits for it.

    Attributes:
        shape: Its shape.
        dtype: Name of its type, such as `float32` or `bfloat16`.
        num_bytes: The size of the copy.

    Raises:
        ValueError, TypeError: If the values form no array, such as lists of different lengths.
    """

    def __init__(self, values: Any) -> None:
        self._ready: Any = None
        self._values: Any
        if hasattr(values, "detach"):
            values = values.detach()
            self.dtype = str(values.dtype).removeprefix("torch.")
            self.on_device = values.device.type != "cpu"
            self._values = values.clone() if self.on_device else _to_numpy(values).copy()
            self._ready = _event_behind(values) if values.device.type == "cuda" else None
            self.num_bytes = values.numel() * values.element_size()
        else:
            self._values = np.array(values)
            self.dtype, self.on_device, self.num_bytes = self._values.dtype.name, False, self._values.nbytes
        self.shape = tuple(self._values.shape)

    def array(self) -> np.ndarray:
        """Return the values; wait for those on a GPU, and free its memory."""
        if self.on_device:
            if self._ready is not None:
                self._ready.synchronize()
            self._values, self.on_device, self._ready = _to_numpy(self._values.cpu()), False, None
        return self._values


def _to_numpy(tensor: Any) -> np.ndarray:
    try:
        return tensor.numpy()
    except TypeError:  # numpy has no bfloat16
        return tensor.float().numpy()


def _event_behind(tensor: Any) -> Any:
    """Return an event after the copy in the current stream: the thread of heartbeats fetches it in another stream."""
    cuda = sys.modules["torch"].cuda
    event = cuda.Event()
    event.record(cuda.current_stream(tensor.device))
    return event
