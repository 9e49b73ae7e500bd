"""Batches of any structure: a tensor, or nested tuples, lists and dicts of tensors and other values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["map_tensors", "num_samples", "sent", "tensors_of", "to_device"]


def map_tensors(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the tensors of a batch, and return a batch of the same structure.

    Objects with a method `to`, such as a `PackedSequence`, count as tensors; other values stay unchanged.
    """
    if isinstance(batch, Mapping):
        return {name: map_tensors(item, function) for name, item in batch.items()}
    if hasattr(batch, "to") and not isinstance(batch, list):
        return function(batch)
    if not isinstance(batch, list | tuple):
        return batch
    items = [map_tensors(item, function) for item in batch]
    return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch on `device`; tensors in page-locked memory are copied asynchronously."""
    return map_tensors(batch, lambda part: part.to(device, non_blocking=True))


def sent(drawn: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor on `device`; a copy to CUDA uses page-locked memory, so that it is asynchronous."""
    return drawn.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else drawn.to(device)


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for item in batch.values():
            yield from tensors_of(item)
    elif isinstance(batch, list | tuple):
        for item in batch:
            yield from tensors_of(item)


def num_samples(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor or list; `TypeError` without either.

    In a tuple or dict of lists, such as images of different sizes, each list holds all samples.
    """
    length = _length(batch)
    if length is None:
        raise TypeError(f"batch: got {type(batch).__name__} without a tensor or a list, expected samples in one")
    return length


def _length(batch: Any) -> int | None:
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else None
    if isinstance(batch, list):
        return len(batch)
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else ()
    return next((length for part in parts if (length := _length(part)) is not None), None)
