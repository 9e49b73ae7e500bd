"""The largest batch that a device has memory for, found by doubling and bisection."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ingredients.datasets.batches import Batches
from ingredients.errors import DeviceError
from ingredients.losses.building import Loss
from ingredients.precision.mixed_precision import MixedPrecision
from ingredients.tuning.lr_range import step, unchanged

__all__ = ["largest", "largest_batch"]


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest size from 1 to `most` that fits, where all smaller ones do; 0 if none does.

    Doubles until a size does not fit, then bisects until it is known to 1 part in 16, or exactly below 16: what a
    device has left varies by more.
    """
    good, bad = 0, most + 1
    size = 1
    while size <= most and fits(size):
        good, size = size, min(2 * size, most) if size < most else most + 1
    bad = min(bad, size)
    while bad - good > max(1, good // 16):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def largest_batch(
    model: nn.Module, loss: Loss, batches: Batches, optimizer: torch.optim.Optimizer, amp: MixedPrecision
) -> int:
    """Return the largest batch on which a step of training fits into the memory of a CUDA device; 0 if none does.

    It is at most the number of training samples. Everything is put back as it was.

    Args:
        model: The model, on its device.
        loss: The loss.
        batches: Where samples come from.
        optimizer: Over the model's parameters.
        amp: The precision; micro-batches are what is measured.

    Raises:
        DeviceError: If the device is not CUDA.
    """
    device = amp.device
    if device.type != "cuda":
        raise DeviceError(
            f"training.find_batch_size: got the device {device}, expected cuda; the memory of others does not end with "
            "an error but in swapping, so compare data.batch_size by the peak memory that a training logs"
        )

    def fits(size: int) -> bool:
        try:
            with unchanged(model, loss, optimizer, amp):
                model.train()
                for _ in range(2):  # at the second step the optimizer has its own state
                    step(model, loss, [_batch_of(batches, size)], optimizer, amp)
        except torch.OutOfMemoryError:
            return False
        finally:
            torch.cuda.empty_cache()
        return True

    return largest(fits, batches.num_samples)


def _batch_of(batches: Batches, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of the first samples of an epoch."""
    parts, count = [], 0
    for batch in batches.epoch(1):
        parts.append(batch)
        count += len(batch[1])
        if count >= size:
            break
    inputs, targets = (torch.cat(column)[:size] for column in zip(*parts, strict=True))
    return inputs, targets
