"""Micro-batches of one optimizer step, and the share of each in the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["with_shares"]


def with_shares(
    group: Sequence[Any], weigh: Callable[[Any], Tensor | int], *, is_sum: bool
) -> Iterator[tuple[Any, Tensor | float]]:
    """Yield micro-batches with the factors of their losses, so that gradients add up to those of one big batch.

    Micro-batches of weight 0, all of whose targets the loss ignores, are left out, as the mean over nothing is NaN.
    Waits for the device once if weights lie there.

    Args:
        group: The micro-batches of one optimizer step.
        weigh: Returns what the mean over a micro-batch is divided by, such as its samples.
        is_sum: Whether losses are sums over samples; each factor is 1 then.

    Yields:
        A micro-batch and its factor: 1 for the only one, else its share of the total weight.
    """
    if is_sum or len(group) == 1:
        yield from ((batch, 1.0) for batch in group)
        return
    weights = [weigh(batch) for batch in group]
    total, numbers = sum(weights), _numbers(weights)
    for batch, weight, number in zip(group, weights, numbers, strict=True):
        if number != 0 or not any(numbers):
            yield batch, weight / total


def _numbers(weights: Sequence[Tensor | int]) -> Sequence[float]:
    tensors = [weight for weight in weights if isinstance(weight, Tensor)]
    if not tensors:
        return weights  # type: ignore[return-value]  # none is a tensor
    return torch.stack([torch.as_tensor(weight, device=tensors[0].device) for weight in weights]).tolist()
