"""Mean and standard deviation of the training inputs, merged from blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ingredients.datasets.samples import as_floats

__all__ = ["Moments", "moments_of", "statistics"]

# Number of values, mean, and sum of squared deviations from it, of each channel of images or each feature.
Moments = tuple[np.ndarray, np.ndarray, np.ndarray]


def statistics(inputs: Any, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of the training inputs: per channel of images, else per feature.

    NaN and infinite values are left out. A constant gets the deviation 1; it is detected exactly, because sums of one
    float32 value are exact in float64 up to 2**29 samples. Blocks are merged as in Chan, Golub, LeVeque (1979),
    http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf

    Args:
        inputs: Array (samples, *shape), or a map-style dataset; its method `moments(indices)` is used if it has one.
        train: Indices of the training samples (samples,).

    Returns:
        Mean and deviation, float32, shaped to broadcast with one input.
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
    """Return the moments of a block of inputs (samples, *shape): per channel of images, else per feature."""
    is_image = block.ndim == 4
    columns = np.moveaxis(block, 1, 0).reshape(block.shape[1], -1) if is_image else block.reshape(len(block), -1).T
    good = np.isfinite(columns)
    count = good.sum(1)
    values = np.where(good, columns, 0).astype(np.float64)
    mean = values.sum(1) / np.maximum(count, 1)
    return count, mean, (np.where(good, values - mean[:, None], 0) ** 2).sum(1)


def _moments(inputs: Any, indices: np.ndarray) -> Iterator[Moments]:
    if isinstance(inputs, np.ndarray):
        blocks = np.array_split(indices, math.ceil(len(indices) / 256))
        yield from (moments_of(as_floats(inputs[part])) for part in blocks)
    elif hasattr(inputs, "moments"):
        yield from inputs.moments(indices)
    else:
        yield from (moments_of(inputs[int(index)][0][None]) for index in indices)
