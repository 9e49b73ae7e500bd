"""Differences between the outputs of an exported model and those of the model itself, on real batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

__all__ = ["Difference", "compare"]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two sets of outputs.

    Attributes:
        absolute: The largest difference of two values; infinite where one is NaN and the other is not.
        relative: The same as a share of the largest value of the model.
        num_samples: Number of samples compared.
    """

    absolute: float
    relative: float
    num_samples: int


def compare(pairs: Iterable[tuple[Tensor, Tensor]], exported: Callable[[Tensor], Tensor]) -> Difference:
    """Compare the outputs of an exported model with those of the model itself.

    One sample is also computed alone, as another batch size.

    Args:
        pairs: Inputs (B, ...) and the outputs of the model for them.
        exported: Returns the outputs of the exported model.
    """
    largest = scale = 0.0
    num_samples = 0
    for inputs, expected in pairs:
        parts = [(inputs, expected)] if num_samples else [(inputs, expected), (inputs[:1], expected[:1])]
        for part, outputs in parts:
            largest = max(largest, _largest_difference(exported(part), outputs))
        scale = max(scale, expected.abs().nan_to_num(posinf=0.0).max().item())
        num_samples += len(inputs)
    return Difference(largest, largest / scale if scale else largest, num_samples)


def _largest_difference(outputs: Tensor, expected: Tensor) -> float:
    if outputs.shape != expected.shape:
        return float("inf")
    outputs, expected = outputs.double(), expected.double()
    same = (outputs == expected) | (outputs.isnan() & expected.isnan())
    return (
        torch.where(same, 0.0, (outputs - expected).abs())
        .nan_to_num(nan=float("inf"), posinf=float("inf"))
        .max()
        .item()
    )
