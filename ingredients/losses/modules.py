"""The losses of `loss.name`: implementations of those that torch lacks or has in another form, and their reduction.

`LOSSES` at the end lists them; to add one, add a row there. Shapes: B batch, K classes or labels.

The reduction over a batch, a mean, a mean weighted by class, or a sum, determines how micro-batches add up to one big
batch, and batches to a part of the data. A user's loss does not declare it, so it is measured.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sacristan.ingredients.config.seed import global_stream

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

    If none explains the value, or the loss rejects synthetic numbers, its attributes decide, see `averaging_of`. A copy
    of the loss is called with outputs between 0 and 1. `num_targets` is 0 if unknown.
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
            values = [float(trial(outputs[index], targets[index])) for index in places]
        for averaging in candidates:
            if _adds_up(values, _shares(module, averaging, [targets[index] for index in places])):
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


class FocalLoss(nn.Module):
    """Cross entropy that gives less weight to well-classified samples: (B, K, ...) and (B, ...) -> scalar.

    The mean of -weight[y] (1 - p[y])^gamma log p[y]. Source: Lin et al., https://arxiv.org/abs/1708.02002

    Args:
        gamma: Focusing strength, at least 0; 0 is cross entropy.
        weight: Weights of the classes (K,), or None.
    """

    weight: Tensor | None

    def __init__(self, gamma: float = 2.0, weight: Tensor | None = None) -> None:
        super().__init__()
        if gamma < 0:
            raise ValueError(f"gamma is {gamma}, expected at least 0")
        self.gamma = gamma
        self.register_buffer("weight", weight)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        log_p = functional.log_softmax(outputs.float(), 1).gather(1, targets[:, None])[:, 0]
        losses = -((1 - log_p.exp()) ** self.gamma) * log_p
        if self.weight is None:
            return losses.mean()
        weights = self.weight[targets]
        return (weights * losses).sum() / weights.sum()


class BinaryCrossEntropy(nn.BCEWithLogitsLoss):
    """`torch.nn.BCEWithLogitsLoss` for labels: outputs (B, 1) with targets (B,) of 0 and 1, or both (B, K)."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().forward(outputs, targets.to(outputs.dtype).reshape(outputs.shape))


class BinaryFocalLoss(nn.Module):
    """Focal loss for labels: outputs (B, 1) with targets (B,) of 0 and 1, or both (B, K) -> scalar.

    The mean or `sum` of -alpha_t (1 - p_t)^gamma log p_t, where p_t is the probability of the true label, and alpha_t
    is alpha for a 1 and 1 - alpha for a 0; None weights both equally. Source: https://arxiv.org/abs/1708.02002
    """

    def __init__(self, gamma: float = 2.0, alpha: float | None = None, reduction: str = "mean") -> None:
        super().__init__()
        if gamma < 0:
            raise ValueError(f"gamma is {gamma}, expected at least 0")
        if alpha is not None and not 0 <= alpha <= 1:
            raise ValueError(f"alpha is {alpha}, expected 0 to 1, or None")
        self.gamma = gamma
        self.alpha = alpha
        self.reduction = reduction

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = outputs.float()
        targets = targets.to(outputs.dtype).reshape(outputs.shape)
        losses = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        losses = (1 - (-losses).exp()) ** self.gamma * losses
        if self.alpha is not None:
            losses = losses * (self.alpha * targets + (1 - self.alpha) * (1 - targets))
        return losses.sum() if self.reduction == "sum" else losses.mean()


class WeightedLosses(nn.Module):
    """A weighted sum of losses on the same outputs and targets."""

    def __init__(self, losses: Mapping[str, nn.Module], weights: Mapping[str, float]) -> None:
        super().__init__()
        self.losses = nn.ModuleDict(losses)
        self.weights = dict(weights)

    def terms(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the weighted sum as `loss`, and each unweighted loss by name, all scalars."""
        values = {name: loss(outputs, targets) for name, loss in self.losses.items()}
        total: Any = sum(self.weights[name] * value for name, value in values.items())
        return {"loss": total, **values}

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.terms(outputs, targets)["loss"]


@dataclasses.dataclass(frozen=True)
class KnownLoss:
    """A loss of `loss.name`: its tasks, options that are `tensors`, and whether two classes have one output."""

    make: type[nn.Module]
    tasks: tuple[str, ...]
    tensors: tuple[str, ...] = ()
    is_binary: bool = False


_OF_PLACES, _OF_LABELS = ("classification", "segmentation"), ("classification", "multilabel")
LOSSES = {
    "cross_entropy": KnownLoss(nn.CrossEntropyLoss, _OF_PLACES, ("weight",)),
    "focal": KnownLoss(FocalLoss, ("classification",), ("weight",)),
    "nll": KnownLoss(nn.NLLLoss, _OF_PLACES, ("weight",)),
    "bce": KnownLoss(BinaryCrossEntropy, _OF_LABELS, ("pos_weight", "weight"), is_binary=True),
    "binary_focal": KnownLoss(BinaryFocalLoss, _OF_LABELS, is_binary=True),
    "mse": KnownLoss(nn.MSELoss, ("regression",)),
    "l1": KnownLoss(nn.L1Loss, ("regression",)),
    "smooth_l1": KnownLoss(nn.SmoothL1Loss, ("regression",)),
}
