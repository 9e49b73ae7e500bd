"""Map-style datasets: what they may offer besides one item at a time, and parts and unions of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sacristan.ingredients.datasets.moments import Moments

__all__ = ["ByteImages", "Joined", "Sequences", "Subset", "joined", "subset"]


@runtime_checkable
class ByteImages(Protocol):
    """Images that can be read as bytes, without random draws, so that whole batches are converted on the device."""

    @property
    def are_bytes(self) -> bool:
        """True if all images have at most 8 bits a channel, so that `bytes_at` can be called."""

    def bytes_at(self, index: int) -> np.ndarray:
        """Return an image as uint8 (height, width, channels)."""

    def moments(self, indices: Sequence[int] | np.ndarray) -> Iterator[Moments]:
        """Yield the moments of the images at `indices`, decoded as `[index]` decodes them."""


@runtime_checkable
class Sequences(Protocol):
    """Sequences of different lengths, which a batch pads."""

    def batch_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the sequences at `indices` as one padded array (sequences, length of the longest)."""


class Joined:
    """Map-style datasets, one after the other."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __getitem__(self, index: int) -> Any:
        for part in self.parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError(index)


def joined(datasets: Sequence[Any]) -> Any:
    """Return datasets as one; a single one unchanged."""
    return datasets[0] if len(datasets) == 1 else Joined(datasets)


class Subset:
    """The items of a map-style dataset at some indices."""

    def __init__(self, dataset: Any, indices: np.ndarray) -> None:
        self.dataset = dataset
        self.indices = indices
        self.dtype = getattr(dataset, "dtype", "float32")

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.indices[index])]


class _ByteSubset(Subset):
    """Some images of a dataset of `ByteImages`."""

    @property
    def are_bytes(self) -> bool:
        return self.dataset.are_bytes

    def bytes_at(self, index: int) -> np.ndarray:
        return self.dataset.bytes_at(int(self.indices[index]))

    def moments(self, indices: Sequence[int] | np.ndarray) -> Iterator[Moments]:
        return self.dataset.moments(self.indices[indices])


def subset(dataset: Any, indices: np.ndarray) -> Any:
    """Return the items of a map-style dataset at some indices, by its `rows_at(indices)` if it has one.

    The result has the same abilities, such as `ByteImages`.
    """
    if hasattr(dataset, "rows_at"):
        return dataset.rows_at(indices)
    return (_ByteSubset if isinstance(dataset, ByteImages) else Subset)(dataset, indices)
