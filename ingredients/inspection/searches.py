"""Searches before a training: a learning rate, and the largest batch that a device has memory for.

The learning-rate range test trains while the rate rises exponentially, and finds where the loss falls fastest. Source:
Smith, Cyclical Learning Rates for Training Neural Networks, https://arxiv.org/abs/1506.01186; the smoothing and the
choice of the steepest descent are those of fastai, https://docs.fast.ai/callback.schedule.html. The largest batch is
found by doubling and bisection.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sacristan.ingredients.commands import print_table
from sacristan.ingredients.config.construct import require
from sacristan.ingredients.config.seed import global_states, set_global_states
from sacristan.ingredients.datasets.batches import Batches
from sacristan.ingredients.errors import DeviceError, OptimizerError
from sacristan.ingredients.losses import Loss
from sacristan.ingredients.models.modules import evaluating, switching
from sacristan.ingredients.precision import MixedPrecision, recomputes_loss, with_shares

# Share of the old value in the smoothed loss; multiple of its lowest value at which the loss has diverged.
_SMOOTHING, _DIVERGED = 0.9, 4.0
# Fewer steps say little, more say nothing new.
_FEWEST, _MOST = 100, 1000

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
class LrRange:
    """Smoothed losses by rising learning rates, and whether the loss `diverged` at the last one."""

    rates: Sequence[float]
    losses: Sequence[float]
    diverged: bool

    @property
    def lowest(self) -> float:
        """The rate at which the loss was lowest; training is about to diverge there."""
        return self.rates[int(np.argmin(self.losses))]

    @property
    def suggestion(self) -> float | None:
        """The rate at which the loss fell fastest; None if it did not fall."""
        # The first values of a smoothed loss come from few batches.
        first, last = len(self.rates) // 10, int(np.argmin(self.losses))
        if last - first < 2:
            return None
        slopes = np.gradient(np.array(self.losses), np.log(self.rates))[first : last + 1]
        return self.rates[first + int(slopes.argmin())] if slopes.min() < 0 else None


def try_rates(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    amp: MixedPrecision,
    *,
    lowest: float = 1e-7,
    highest: float = 10.0,
) -> LrRange:
    """Train for one pass while the learning rate rises, then restore model, optimizer and random streams.

    A pass of fewer than 100 steps is repeated up to that number, and one of more than 1000 ends there. Groups keep the
    ratios of their rates; that of the first group counts.
    """
    if recomputes_loss(optimizer):
        raise OptimizerError(
            f"training.find_lr: got optimizer.name={type(optimizer).__name__}, which computes the loss of a batch "
            "several times; choose another"
        )
    num_steps = min(max(math.ceil(len(batches) / amp.accumulate), _FEWEST), _MOST)
    wanted = np.geomspace(lowest, highest, num_steps).tolist()
    base = optimizer.param_groups[0]["lr"]
    ratios = [group["lr"] / base for group in optimizer.param_groups]
    rates: list[float] = []
    losses: list[float] = []
    average, diverged = 0.0, False
    with unchanged(model, loss, optimizer, amp):
        model.train()
        for number, (rate, group) in enumerate(zip(wanted, _groups(batches, amp.accumulate), strict=False), 1):
            for each, ratio in zip(optimizer.param_groups, ratios, strict=True):
                each["lr"] = rate * ratio
            value = step(model, loss, group, optimizer, amp)
            average = _SMOOTHING * average + (1 - _SMOOTHING) * value
            smoothed = average / (1 - _SMOOTHING**number)
            diverged = not math.isfinite(value) or (number > num_steps // 10 and smoothed > _DIVERGED * min(losses))
            if diverged:
                break
            rates.append(rate)
            losses.append(smoothed)
    if not rates:
        raise OptimizerError("training.find_lr: the loss is NaN or infinite at the first step; look at data and model")
    return LrRange(rates, losses, diverged)


def step(
    model: nn.Module,
    loss: Loss,
    group: Sequence[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    amp: MixedPrecision,
) -> float:
    """Take one optimizer step on micro-batches, and return the loss before it; waits for the device."""
    value: Tensor | float = 0.0
    for (inputs, targets), share in with_shares(
        group, lambda batch: loss.normalizer(batch[1]), is_sum=loss.averaging == "sum"
    ):
        with amp.autocast():
            part = loss(model(inputs), targets) * share
        amp.backward(part)
        value = value + part.detach()
    amp.step(optimizer)
    amp.update()
    optimizer.zero_grad()
    return float(loss.mean(torch.as_tensor(value), sum(len(targets) for _, targets in group)))


@contextlib.contextmanager
def unchanged(model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, amp: MixedPrecision) -> Iterator[None]:
    """Restore weights, modes, optimizer, precision and random streams after the block, and clear gradients."""
    parts: tuple[Any, ...] = (model, loss.module, optimizer, amp)
    kept, streams = [copy.deepcopy(part.state_dict()) for part in parts], global_states()
    try:
        for each in switching([optimizer]):
            each.train()
        with evaluating(model):
            yield
    finally:
        for part, state in zip(parts, kept, strict=True):
            part.load_state_dict(state)
        optimizer.zero_grad()
        set_global_states(streams)


def _groups(batches: Batches, accumulate: int) -> Iterator[list]:
    for epoch in itertools.count(1):
        iterator = batches.epoch(epoch)
        while group := list(itertools.islice(iterator, accumulate)):
            yield group


def print_range(tried: LrRange) -> None:
    """Print the losses at about ten rates, the rate at which the loss diverged, and the suggestion."""
    places = sorted({round(index) for index in np.linspace(0, len(tried.rates) - 1, 11)})
    print_table(["lr", "loss"], [[f"{tried.rates[index]:.2e}", f"{tried.losses[index]:.4f}"] for index in places])
    if tried.diverged:
        print(f"diverged above lr={tried.rates[-1]:.2e}")
    if tried.suggestion is None:
        print("the loss did not fall at any rate; look at data, model and loss")
    else:
        print(f"lowest at lr={tried.lowest:.2e}; falls fastest at the suggestion: optimizer.lr={tried.suggestion:.2g}")


def draw_range(tried: LrRange, path: Path) -> None:
    """Draw the smoothed loss by learning rate as a PNG, with a line at the suggestion."""
    figure = require("matplotlib.figure", "plot", "drawing the losses").Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.semilogx(tried.rates, tried.losses)
    if tried.suggestion is not None:
        axes.axvline(tried.suggestion, color="tab:red", linestyle="--", label=f"lr={tried.suggestion:.2g}")
        axes.legend()
    axes.set(xlabel="learning rate", ylabel="loss, smoothed")
    figure.savefig(path)


@dataclasses.dataclass(frozen=True)
class Tried:
    """A trial of a batch size."""

    size: int
    peak_bytes: int | None
    step_s: float | None


@dataclasses.dataclass(frozen=True)
class BatchSizes:
    """Results by batch size."""

    largest: int
    tried: Sequence[Tried]
    total_bytes: int


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest size that fits up to `most`, to 1 part in 16 as free memory varies, assuming smaller do."""
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

    It has at most all training samples. Model, optimizer and random streams are restored. Sizes are of micro-batches.
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

    batch_size = largest(fits, batches.num_samples)
    total = torch.cuda.get_device_properties(device).total_memory
    return BatchSizes(batch_size, sorted(tried, key=lambda each: each.size), total)


def print_sizes(sizes: BatchSizes) -> None:
    """Print a table of peak memory and samples per second by size."""
    rows = []
    for trial in sizes.tried:
        if trial.peak_bytes is None or trial.step_s is None:
            rows.append([trial.size, "does not fit", ""])
        else:
            rows.append([trial.size, f"{trial.peak_bytes / 2**20:.1f}", f"{trial.size / trial.step_s:,.0f}"])
    print_table(["batch size", "peak MiB", "samples/s"], rows)


def draw_sizes(sizes: BatchSizes, path: Path) -> None:
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
    """Return whether a device has no memory left, as torch, cuBLAS and cuDNN (which finds no engine) say it."""
    return isinstance(error, torch.OutOfMemoryError) or any(mark in str(error) for mark in _OF_MEMORY)
