"""The losses of `loss.name`, and implementations of those that torch lacks or has in another form.

`LOSSES` at the end lists them; to add one, add a row there. Shapes: B batch, K classes or labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

__all__ = ["LOSSES", "BinaryCrossEntropy", "BinaryFocalLoss", "FocalLoss", "KnownLoss", "WeightedLosses"]


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

    The mean of -alpha_t (1 - p_t)^gamma log p_t, where p_t is the probability of the true label, and alpha_t is alpha
    for a 1 and 1 - alpha for a 0. Source: Lin et al., https://arxiv.org/abs/1708.02002

    Args:
        gamma: Focusing strength, at least 0.
        alpha: Weight of the ones, from 0 to 1; None weights ones and zeros equally.
        reduction: `mean` over samples and labels, or `sum`.
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
    """A loss of `loss.name`.

    Attributes:
        tasks: The tasks that it fits.
        tensors: Names of its options that are tensors.
        is_binary: Whether a two-class classifier has a single output with it.
    """

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
