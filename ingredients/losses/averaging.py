"""The reduction of a loss over a batch: a mean, a mean weighted by class, or a sum.

It determines how micro-batches add up to one big batch, and batches to a part of the data. A user's loss does not
declare it, so it is measured.
"""

from __future__ import annotations

import copy
import math
from typing import Literal

import torch
from torch import Tensor, nn

from sacristan.ingredients.config.seed import global_stream

__all__ = ["Averaging", "averaging_of", "measured_averaging", "normalizer"]

Averaging = Literal["mean", "weights", "sum"]


def averaging_of(module: nn.Module, kind: str) -> Averaging:
    """Return the reduction of a loss of torch or of the lab, from its attributes `reduction` and `weight`."""
    if getattr(module, "reduction", "mean") == "sum":
        return "sum"
    weight = getattr(module, "weight", None)
    if kind == "classes" and isinstance(weight, Tensor) and not isinstance(weight, nn.Parameter) and weight.ndim == 1:
        return "weights"
    return "mean"


def normalizer(module: nn.Module, averaging: Averaging, targets: Tensor) -> Tensor | int:
    """Return the divisor of the mean over a batch, with `ignore_index` and class `weight`; samples for a sum."""
    if averaging == "sum":
        return len(targets)
    ignored = getattr(module, "ignore_index", None)
    weight = getattr(module, "weight", None)
    if targets.is_floating_point():
        return len(targets)  # probabilities of classes, labels or values, which torch averages over samples
    if averaging == "weights" and isinstance(weight, Tensor):
        if ignored is None:
            return weight[targets].sum()
        # A boolean index would synchronise with the GPU.
        counted = targets != ignored
        return (weight[torch.where(counted, targets, 0)] * counted).sum()
    # With a class for each pixel, the mean is over pixels with a class, whose number varies between batches.
    if ignored is not None and (ignored >= 0 or targets.ndim > 1):
        return (targets != ignored).sum()
    return targets.numel() if targets.ndim > 1 else len(targets)


@torch.no_grad()
def measured_averaging(module: nn.Module, kind: str, num_outputs: int, num_targets: int) -> Averaging:
    """Measure the reduction of a loss, by comparing its value on a batch with those on two parts of the batch.

    If no reduction explains the value, as for losses that compare samples, or the loss rejects synthetic numbers, its
    attributes decide, see `averaging_of`. The loss is on the CPU; a copy of it is called. Synthetic outputs are between
    0 and 1, valid as scores and as probabilities. `num_targets` is the number of classes, labels or values of a sample;
    0 if unknown.
    """
    stated = averaging_of(module, kind)
    if num_targets == 0:
        return stated
    if stated == "weights" and len(getattr(module, "weight", ())) != num_outputs:
        stated = "mean"
    outputs, targets = _synthetic_batch(kind, num_outputs, num_targets)
    places = (slice(0, 6), slice(0, 2), slice(2, 6))
    candidates: tuple[Averaging, ...] = ("mean", "weights", "sum") if stated == "weights" else ("mean", "sum")
    try:
        # Losses may draw random numbers and keep statistics.
        with global_stream(0, "averaging"):
            trial = copy.deepcopy(module).eval()
            values = [float(trial(outputs[place], targets[place])) for place in places]
        for averaging in candidates:
            if _adds_up(values, _shares(module, averaging, [targets[place] for place in places])):
                return averaging
    except Exception:
        # A user's loss may reject synthetic numbers for any reason; it is checked on real outputs later.
        pass
    return stated


def _synthetic_batch(kind: str, num_outputs: int, num_targets: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.rand(6, num_outputs, generator=generator) * 0.8 + 0.1
    if kind not in ("labels", "values"):
        return outputs, torch.arange(6) % num_targets
    targets = torch.rand(6, num_targets, generator=generator)
    return outputs, targets.round() if kind == "labels" else targets


def _shares(module: nn.Module, averaging: Averaging, targets: list[Tensor]) -> list[float]:
    """Return the shares of two parts in the loss of a whole batch; `targets` are those of the whole and the parts."""
    if averaging == "sum":
        return [1.0, 1.0]
    whole, *parts = (float(normalizer(module, averaging, part)) for part in targets)
    return [part / whole for part in parts]


def _adds_up(values: list[float], shares: list[float]) -> bool:
    whole, *parts = values
    joined = sum(value * share for value, share in zip(parts, shares, strict=True))
    return math.isclose(whole, joined, rel_tol=1e-4, abs_tol=1e-7)
