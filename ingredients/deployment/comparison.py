"""Differences between the outputs of an exported model and those of the model itself, on real batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

__all__ = ["Difference", "compare"]


@dataclasses.dataclass(frozen=True)
class Difference:
    """Of two sets of outputs.

    Attributes:
        absolute: The largest difference of two values; infinite where one is NaN and the other is not.
        relative: The same as a share of the largest value of the model.
        num_samples: How many samples were compared.
    """

    absolute: float
    relative: float
    num_samples: int


def compare(pairs: Iterable[tuple[Tensor, Tensor]], exported: Callable[[Tensor], Tensor]) -> Difference:
    """Return the difference between what an exported model makes of inputs and what it should make of them.

    A sample is computed alone, too, as that is another size of a batch.

    Args:
        pairs: Inputs (B, ...) and the outputs that the model has for them.
        exported: Returns the outputs of the exported model.
    """
    largest = scale = 0.0
    num_samples = 0
    for inputs, expected in pairs:
        parts = [(inputs, expected)] if num_samples else [(inputs, expected), (inputs[:1], expected[:1])]
        for given, wanted in parts:
            largest = max(largest, _largest_difference(exported(given), wanted))
        scale = max(scale, expected.abs().nan_to_num(posinf=0.0).max().item())
        num_samples += len(inputs)
    return Difference(largest, largest / scale if scale else largest, num_samples)


def _largest_difference(found: Tensor, wanted: Tensor) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    found, wanted = found.double(), wanted.double()
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    return torch.where(same, 0.0, (found - wanted).abs()).nan_to_num(nan=float("inf"), posinf=float("inf")).max().item()
