"""The largest batch that a device has memory for, found by doubling and bisection."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from sacristan.ingredients.config.construct import require
from sacristan.ingredients.config.tables import print_table
from sacristan.ingredients.datasets.batches import Batches
from sacristan.ingredients.errors import DeviceError
from sacristan.ingredients.losses.building import Loss
from sacristan.ingredients.precision.mixed_precision import MixedPrecision
from sacristan.ingredients.tuning.lr_range import step, unchanged

__all__ = ["BatchSizes", "Tried", "batch_of", "draw", "is_out_of_memory", "largest", "largest_batch", "print_sizes"]

# Messages of CUDA's libraries that have no memory left.
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
    """A trial of a batch size.

    Attributes:
        peak_bytes: Peak memory of tensors on the device; None if it did not suffice.
        step_s: Seconds of a step of training; None if the memory did not suffice.
    """

    size: int
    peak_bytes: int | None
    step_s: float | None


@dataclasses.dataclass(frozen=True)
class BatchSizes:
    """Results by batch size.

    Attributes:
        largest: The largest size that fits; 0 if none does.
        tried: All trials, by rising size.
        total_bytes: Memory of the device.
    """

    largest: int
    tried: Sequence[Tried]
    total_bytes: int


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest size up to `most` that fits, assuming all smaller ones do; 0 if none does.

    Doubles until a size does not fit, then bisects to 1 part in 16, or exactly below 16: the free memory of a device
    varies by more.
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
    """Find the largest batch for which a training step fits into the memory of a CUDA device, with all trials.

    It has at most all training samples. Model, optimizer and random streams are restored afterwards. Sizes are those of
    micro-batches.
    """
    device = amp.device
    if device.type != "cuda":
        raise DeviceError(
            f"training.find_batch_size: got the device {device}, expected cuda; other devices swap instead of failing, "
            "so compare data.batch_size by the peak memory that a training logs"
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


def print_sizes(sizes: BatchSizes) -> None:
    """Print a table of peak memory and samples per second by size."""
    rows = []
    for trial in sizes.tried:
        if trial.peak_bytes is None or trial.step_s is None:
            rows.append([trial.size, "does not fit", ""])
        else:
            rows.append([trial.size, f"{trial.peak_bytes / 2**20:.1f}", f"{trial.size / trial.step_s:,.0f}"])
    print_table(["batch size", "peak MiB", "samples/s"], rows)


def draw(sizes: BatchSizes, path: Path) -> None:
    """Draw peak memory and speed by size as a PNG; sizes that do not fit are red lines."""
    figure = require("matplotlib.figure", "plot", "drawing memory").Figure(figsize=(6, 6), layout="constrained")
    memory, speed = figure.subplots(2, sharex=True)
    good = [trial for trial in sizes.tried if trial.peak_bytes is not None and trial.step_s is not None]
    fitting = [trial.size for trial in good]
    memory.loglog(fitting, [trial.peak_bytes / 2**20 for trial in good if trial.peak_bytes is not None], "o-")
    memory.axhline(sizes.total_bytes / 2**20, color="tab:red", linestyle="--", label="memory of the device")
    speed.semilogx(fitting, [trial.size / trial.step_s for trial in good if trial.step_s], "o-")
    for trial in sizes.tried:
        if trial.peak_bytes is None:
            memory.axvline(trial.size, color="tab:red", alpha=0.4)
    memory.set(ylabel="peak memory, MiB")
    memory.legend()
    speed.set(xlabel="batch size", ylabel="samples/s")
    figure.savefig(path)


def batch_of(batches: Batches, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one batch of the first samples of an epoch (fewer if it has fewer); its memory is allocated once."""
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
    """Return whether an error means that the device has no memory left: torch's own, or one of cuBLAS or cuDNN.

    These allocate their own workspaces. If cuDNN finds no room for one, its message is that it has no engine.
    """
    return isinstance(error, torch.OutOfMemoryError) or any(mark in str(error) for mark in _OF_MEMORY)
