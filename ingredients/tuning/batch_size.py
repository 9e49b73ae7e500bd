"""The largest batch that a device has memory for, found by doubling and bisection."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from ingredients.config.construct import require
from ingredients.config.tables import print_table
from ingredients.datasets.batches import Batches
from ingredients.errors import DeviceError
from ingredients.losses.building import Loss
from ingredients.precision.mixed_precision import MixedPrecision
from ingredients.tuning.lr_range import step, unchanged

__all__ = ["BatchSizes", "Tried", "batch_of", "draw", "is_out_of_memory", "largest", "largest_batch", "print_sizes"]

# What errors of CUDA's libraries say where there is no memory for them.
_OF_MEMORY = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "Unable to find a valid cuDNN algorithm",
    "unable to find an engine to execute this computation",
)


@dataclasses.dataclass(frozen=True)
class Tried:
    """A batch that was tried.

    Attributes:
        size: Its samples.
        peak_bytes: Most memory that tensors took of the device; None if it did not suffice.
        step_s: Seconds of a step of training; None if the memory did not suffice.
    """

    size: int
    peak_bytes: int | None
    step_s: float | None


@dataclasses.dataclass(frozen=True)
class BatchSizes:
    """Results by batch size.

    Attributes:
        largest: The largest that fits; 0 if none does.
        tried: All that were tried, rising.
        total_bytes: Memory of the device.
    """

    largest: int
    tried: Sequence[Tried]
    total_bytes: int


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
) -> BatchSizes:
    """Return the largest batch on which a step of training fits into the memory of a CUDA device, and what was tried.

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

    tried: list[Tried] = []

    def fits(size: int) -> bool:
        torch.cuda.reset_peak_memory_stats(device)
        seconds = 0.0
        try:
            with unchanged(model, loss, optimizer, amp):
                model.train()
                for _ in range(2):  # at the second step the optimizer has its own state
                    batch = batch_of(batches, size)
                    began = time.perf_counter()
                    step(model, loss, [batch], optimizer, amp)  # waits for the device
                    seconds = time.perf_counter() - began
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            tried.append(Tried(size, None, None))
            return False
        finally:
            torch.cuda.empty_cache()
        tried.append(Tried(size, torch.cuda.max_memory_allocated(device), seconds))
        return True

    found = largest(fits, batches.num_samples)
    total = torch.cuda.get_device_properties(device).total_memory
    return BatchSizes(found, sorted(tried, key=lambda each: each.size), total)


def print_sizes(found: BatchSizes) -> None:
    """Print memory and speed by size."""
    rows = []
    for each in found.tried:
        if each.peak_bytes is None or each.step_s is None:
            rows.append([each.size, "does not fit", ""])
        else:
            rows.append([each.size, f"{each.peak_bytes / 2**20:.1f}", f"{each.size / each.step_s:,.0f}"])
    print_table(["batch size", "peak MiB", "samples/s"], rows)


def draw(found: BatchSizes, path: Path) -> None:
    """Draw memory and speed by size as a PNG.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    figure = require("matplotlib.figure", "plot", "drawing memory").Figure(figsize=(6, 6), layout="constrained")
    memory, speed = figure.subplots(2, sharex=True)
    good = [each for each in found.tried if each.peak_bytes is not None and each.step_s is not None]
    sizes = [each.size for each in good]
    memory.loglog(sizes, [each.peak_bytes / 2**20 for each in good if each.peak_bytes is not None], "o-")
    memory.axhline(found.total_bytes / 2**20, color="tab:red", linestyle="--", label="memory of the device")
    speed.semilogx(sizes, [each.size / each.step_s for each in good if each.step_s], "o-")
    for each in found.tried:
        if each.peak_bytes is None:
            memory.axvline(each.size, color="tab:red", alpha=0.4)
    memory.set(ylabel="peak memory, MiB")
    memory.legend()
    speed.set(xlabel="batch size", ylabel="samples/s")
    figure.savefig(path)


def batch_of(batches: Batches, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of the first samples of an epoch; its memory is taken once."""
    whole: tuple[torch.Tensor, torch.Tensor] | None = None
    count = 0
    for inputs, targets in batches.epoch(1):
        if whole is None and len(targets) >= size:
            return inputs[:size], targets[:size]
        if whole is None:
            whole = (inputs.new_empty(size, *inputs.shape[1:]), targets.new_empty(size, *targets.shape[1:]))
        stop = min(count + len(targets), size)
        whole[0][count:stop] = inputs[: stop - count]
        whole[1][count:stop] = targets[: stop - count]
        count = stop
        if count == size:
            break
    if whole is None:
        raise DeviceError("training.find_batch_size: got no training samples, expected at least one")
    return whole[0][:count], whole[1][:count]


def is_out_of_memory(error: RuntimeError) -> bool:
    """Tell whether an error says that the device has no memory left: torch's own, or one of cuBLAS or cuDNN.

    These allocate workspaces themselves. Where cuDNN finds none small enough, it says that it has no engine.
    """
    return isinstance(error, torch.OutOfMemoryError) or any(mark in str(error) for mark in _OF_MEMORY)
