"""Reduction of a loss over the samples of a batch: a mean, a mean weighted by class, or a sum.

It decides how micro-batches add up to one big batch, and batches to a whole part of the data. Nothing in a loss of the
user's own tells it, so it is measured.
"""

from __future__ import annotations

import copy
import math
from typing import Literal

import torch
from torch import Tensor, nn

from ingredients.config.seed import global_stream

__all__ = ["Averaging", "averaging_of", "measured_averaging", "normalizer"]

Averaging = Literal["mean", "weights", "sum"]


def averaging_of(module: nn.Module, kind: str) -> Averaging:
    """Return how a loss of torch or of the lab joins samples, by its attributes `reduction` and `weight`."""
    if getattr(module, "reduction", "mean") == "sum":
        return "sum"
    weight = getattr(module, "weight", None)
    if kind == "classes" and isinstance(weight, Tensor) and not isinstance(weight, nn.Parameter) and weight.ndim == 1:
        return "weights"
    return "mean"


def normalizer(module: nn.Module, averaging: Averaging, targets: Tensor) -> Tensor | int:
    """Return what the mean over a batch is divided by; of a sum, what its mean would be."""
    if averaging == "sum":
        return len(targets)
    ignored = getattr(module, "ignore_index", None)
    weight = getattr(module, "weight", None)
    if targets.is_floating_point():
        return len(targets)  # probabilities of classes, which torch averages over samples, labels or values
    if averaging == "weights" and isinstance(weight, Tensor):
        if ignored is None:
            return weight[targets].sum()
        # Not by an index of True and False, for which a GPU would have to be waited for.
        counted = targets != ignored
        return (weight[torch.where(counted, targets, 0)] * counted).sum()
    # Of a class for each pixel the mean is over those that have one, whose number may differ from batch to batch.
    if ignored is not None and (ignored >= 0 or targets.ndim > 1):
        return (targets != ignored).sum()
    return targets.numel() if targets.ndim > 1 else len(targets)


@torch.no_grad()
def measured_averaging(module: nn.Module, kind: str, num_outputs: int, num_targets: int) -> Averaging:
    """Return how a loss joins samples, by comparing its value on a batch with those on two parts of the batch.

    Where none of the three explains the value, as of losses that compare samples, or the loss refuses numbers that are
    made up, or it is not known what the data hold, its attributes count.

    Args:
        module: The loss, on the CPU; a copy of it is called.
        kind: See `Loss.kind`.
        num_outputs: Outputs of a sample; they are made up from 0 to 1, to pass for scores and for probabilities.
        num_targets: Classes, labels or values of a sample; 0 if that is not known.
    """
    if num_targets == 0:
        return averaging_of(module, kind)
    generator = torch.Generator().manual_seed(0)
    outputs = torch.rand(6, num_outputs, generator=generator) * 0.8 + 0.1
    targets = torch.arange(6) % num_targets
    if kind in ("labels", "values"):
        targets = torch.rand(6, num_targets, generator=generator)
        targets = targets.round() if kind == "labels" else targets
    places = (slice(0, 6), slice(0, 2), slice(2, 6))
    stated = averaging_of(module, kind)
    if stated == "weights" and len(getattr(module, "weight", ())) != num_outputs:
        stated = "mean"
    try:
        # Losses may draw, and keep statistics.
        with global_stream(0, "averaging"):
            trial = copy.deepcopy(module).eval()
            whole, *parts = (float(trial(outputs[place], targets[place])) for place in places)
        candidates: tuple[Averaging, ...] = ("mean", "weights", "sum") if stated == "weights" else ("mean", "sum")
        for averaging in candidates:
            shares = [1.0, 1.0]
            if averaging != "sum":
                weights = [float(normalizer(module, averaging, targets[place])) for place in places]
                shares = [weight / weights[0] for weight in weights[1:]]
            joined = sum(value * share for value, share in zip(parts, shares, strict=True))
            if math.isclose(whole, joined, rel_tol=1e-4, abs_tol=1e-7):
                return averaging
    except Exception:
        # A loss of the user's may refuse what is made up for any reason; it is checked on real outputs later.
        pass
    return stated
