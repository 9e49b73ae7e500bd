"""Mean and deviation of the training inputs, merged from blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ingredients.datasets.samples import as_floats

__all__ = ["Moments", "moments_of", "statistics"]

# Of each channel of images, or each feature: how many values, their mean, the sum of squared differences from it.
Moments = tuple[np.ndarray, np.ndarray, np.ndarray]


def statistics(inputs: Any, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of the training inputs: per channel of images, else per feature.

    Values that are NaN or infinite do not count. What does not vary has a deviation of 1, so that it can be divided by.
    A constant is found out exactly: sums of one float32 value are exact in float64 up to 2**29 samples.
    Blocks are merged as in Chan, Golub, LeVeque (1979), http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf

    Args:
        inputs: Array (samples, *shape), or a map-style dataset; one with `moments(indices)` gives those of its items.
        train: Indices of the training samples.

    Returns:
        Both float32, shaped to broadcast with one input.
    """
    count = mean = squares = np.zeros(())
    for here, mean_here, squares_here in _moments(inputs, train):
        total = np.maximum(count + here, 1)
        delta = mean_here - mean
        squares = squares + squares_here + delta**2 * count * here / total
        mean = mean + delta * here / total
        count = count + here
    std = np.sqrt(squares / np.maximum(count, 1))
    std = np.where(std > 0, std, 1.0)
    one = inputs[0] if isinstance(inputs, np.ndarray) else inputs[int(train[0])][0]
    shape = (-1, 1, 1) if one.ndim == 3 else one.shape
    return mean.astype(np.float32).reshape(shape), std.astype(np.float32).reshape(shape)


def moments_of(block: np.ndarray) -> Moments:
    """Return the moments of inputs (samples, *shape)."""
    columns = (
        np.moveaxis(block, 1, 0).reshape(block.shape[1], -1) if block.ndim == 4 else block.reshape(len(block), -1).T
    )
    good = np.isfinite(columns)
    here = good.sum(1)
    values = np.where(good, columns, 0).astype(np.float64)
    mean = values.sum(1) / np.maximum(here, 1)
    return here, mean, (np.where(good, values - mean[:, None], 0) ** 2).sum(1)


def _moments(inputs: Any, chosen: np.ndarray) -> Iterator[Moments]:
    if isinstance(inputs, np.ndarray):
        blocks = np.array_split(chosen, math.ceil(len(chosen) / 256))
        yield from (moments_of(as_floats(inputs[part])) for part in blocks)
    elif hasattr(inputs, "moments"):
        yield from inputs.moments(chosen)
    else:
        yield from (moments_of(inputs[int(index)][0][None]) for index in chosen)
