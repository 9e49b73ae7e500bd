"""Map-style datasets of the lab: what they may offer beyond an item at a time, and parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ingredients.datasets.moments import Moments

__all__ = ["ByteImages", "Joined", "Sequences", "Subset", "subset"]


@runtime_checkable
class ByteImages(Protocol):
    """Images that can be read as bytes, without a draw, so that batches of them are converted as a whole."""

    @property
    def are_bytes(self) -> bool:
        """Whether `bytes_at` can be called: none of them has more than 8 bits a channel."""

    def bytes_at(self, index: int) -> np.ndarray:
        """Return an image as uint8 (height, width, channels)."""

    def moments(self, indices: Sequence[int] | np.ndarray) -> Iterator[Moments]:
        """Yield the moments of images, as `[index]` gives them."""


@runtime_checkable
class Sequences(Protocol):
    """Sequences of different lengths, which are filled up in a batch."""

    def batch_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some of them as one array (sequences, length of the longest)."""


class Joined:
    """Map-style datasets one behind the other."""

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


class Subset:
    """Some items of a map-style dataset."""

    def __init__(self, dataset: Any, indices: np.ndarray) -> None:
        self.dataset = dataset
        self.indices = indices
        self.dtype = getattr(dataset, "dtype", "float32")

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.indices[index])]


class _ByteSubset(Subset):
    """Some of the images of a dataset of `ByteImages`."""

    @property
    def are_bytes(self) -> bool:
        return self.dataset.are_bytes

    def bytes_at(self, index: int) -> np.ndarray:
        return self.dataset.bytes_at(int(self.indices[index]))

    def moments(self, indices: Sequence[int] | np.ndarray) -> Iterator[Moments]:
        return self.dataset.moments(self.indices[indices])


def subset(dataset: Any, indices: np.ndarray) -> Any:
    """Return some items of a dataset, which can do what that can."""
    if hasattr(dataset, "rows_at"):
        return dataset.rows_at(indices)
    return (_ByteSubset if isinstance(dataset, ByteImages) else Subset)(dataset, indices)
