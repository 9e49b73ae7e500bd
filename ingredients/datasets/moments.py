"""Mean and standard deviation of the training inputs, merged from blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sacristan.ingredients.datasets.samples import as_floats

__all__ = ["Moments", "Rounding", "float32_rounds", "moments_of", "statistics"]

# Number of values, mean, and sum of squared deviations from it, of each channel of images or each feature.
Moments = tuple[np.ndarray, np.ndarray, np.ndarray]

# float32 loses digits where it rounds values by more than this share of their deviation.
_ROUNDING = 1e-4
# A deviation below this share of the mean is float64's own rounding.
_CONSTANT = 2.0**-46
# Values of a block.
_BLOCK = 2**18


def statistics(inputs: Any, train: np.ndarray, *, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of the training inputs: per channel of images, else per feature.

    `inputs` are an array (samples, *shape) or a dataset, whose `moments(indices)` is used if it has one. The results
    are float32 (float64 if `exact`) and broadcast with one input.

    NaN and infinite values are left out. A constant gets the deviation 1; it is detected exactly, because sums of one
    float32 value are exact in float64 up to 2**29 samples. Blocks are merged as in Chan, Golub, LeVeque (1979),
    http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf
    """
    dtype = np.float64 if exact else np.float32
    mean, std = _mean_and_std(_merged(_moments(inputs, train, dtype)))
    std = np.where(std > (_CONSTANT * np.abs(mean) if exact else 0), std, 1.0)
    one = inputs[0] if isinstance(inputs, np.ndarray) else inputs[int(train[0])][0]
    shape = (-1, 1, 1) if one.ndim == 3 else one.shape
    return mean.astype(dtype).reshape(shape), std.astype(dtype).reshape(shape)


class Rounding:
    """The error of values as float32, beside their deviation: per channel of images, else per feature."""

    def __init__(self) -> None:
        self._moments: Moments = (np.zeros(()),) * 3
        self._error = np.zeros(())

    def add(self, block: np.ndarray) -> None:
        """Add values (samples, *shape)."""
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.nan_to_num(np.abs(block - block.astype(np.float32)), nan=0.0)
        self._error = np.maximum(self._error, _columns(error).max(1, initial=0.0))
        self._moments = _merged([self._moments, moments_of(block)])

    @property
    def matters(self) -> bool:
        """Whether float32 rounds the values of a feature, unless constant, by a noticeable share of its deviation."""
        mean, std = _mean_and_std(self._moments)
        return bool(((self._error > _ROUNDING * std) & (std > _CONSTANT * np.abs(mean))).any())


def float32_rounds(values: np.ndarray) -> bool:
    """Return whether float32 would lose digits of numbers (samples, *shape), see `Rounding`."""
    if values.dtype != np.float64 or not values.size:
        return False
    rounding = Rounding()
    for block in np.array_split(values, math.ceil(values.size / _BLOCK)):
        rounding.add(block)
    return rounding.matters


def _merged(parts: Iterable[Moments]) -> Moments:
    count = mean = squares = np.zeros(())
    for here, mean_here, squares_here in parts:
        total = np.maximum(count + here, 1)
        delta = mean_here - mean
        squares = squares + squares_here + delta**2 * count * here / total
        mean = mean + delta * here / total
        count = count + here
    return count, mean, squares


def _mean_and_std(moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    count, mean, squares = moments
    return mean, np.sqrt(squares / np.maximum(count, 1))


def moments_of(block: np.ndarray) -> Moments:
    """Return the moments of a block of inputs (samples, *shape): per channel of images, else per feature."""
    columns = _columns(block)
    good = np.isfinite(columns)
    count = good.sum(1)
    values = np.where(good, columns, 0).astype(np.float64)
    mean = values.sum(1) / np.maximum(count, 1)
    return count, mean, (np.where(good, values - mean[:, None], 0) ** 2).sum(1)


def _columns(block: np.ndarray) -> np.ndarray:
    """Return the values (features, values of each) of a block."""
    is_image = block.ndim == 4
    return np.moveaxis(block, 1, 0).reshape(block.shape[1], -1) if is_image else block.reshape(len(block), -1).T


def _moments(inputs: Any, indices: np.ndarray, dtype: type) -> Iterator[Moments]:
    if isinstance(inputs, np.ndarray):
        blocks = np.array_split(indices, math.ceil(len(indices) / 256))
        yield from (moments_of(as_floats(inputs[part]).astype(dtype, copy=False)) for part in blocks)
    elif hasattr(inputs, "moments"):
        yield from inputs.moments(indices)
    else:
        yield from (moments_of(inputs[int(index)][0][None].astype(dtype, copy=False)) for index in indices)
