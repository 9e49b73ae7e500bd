"""`Prepared`: a model wrapped in the preparation of its data, which takes values as in the source."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from sacristan.ingredients.datasets.fitted import Preparation

__all__ = ["Prepared"]


class Prepared(nn.Module):
    """Normalises inputs, calls a model, and returns values in the targets' own unit; scores of classes stay scores.

    Images stored as bytes must be scaled to 0 to 1, categories and words must be numbers already. Values that float32
    would round, such as Unix times, must be float64, see `Preparation`.

    Shapes: inputs (B, *by.input_shape), outputs as the model's.
    """

    mean: Tensor | None
    std: Tensor | None
    target_mean: Tensor | None
    target_std: Tensor | None

    def __init__(self, model: nn.Module, by: Preparation) -> None:
        super().__init__()
        self.model = model
        self.is_filled = by.table is not None and by.table.missing == "fill"
        for name in ("mean", "std", "target_mean", "target_std"):
            self.register_buffer(name, _tensor(getattr(by, name)))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.mean is not None and self.std is not None:
            inputs = _float32((inputs - self.mean) / self.std)
        if self.is_filled:
            inputs = torch.where(torch.isnan(inputs), torch.zeros_like(inputs), inputs)
        return self.own_unit(self.model(inputs))

    def own_unit(self, outputs: Tensor) -> Tensor:
        """Return outputs (B, D) in the targets' own unit, multiplied by their deviation and shifted by their mean.

        Class scores, whose targets have neither, are returned unchanged.
        """
        if self.target_mean is None or self.target_std is None:
            return outputs
        return outputs * self.target_std + self.target_mean

    def undo(self, inputs: Tensor) -> Tensor:
        """Undo the normalisation of inputs (B, *by.input_shape); unchanged if the data were not normalised."""
        if self.mean is None or self.std is None:
            return inputs
        return inputs * self.std + self.mean


def _float32(values: Tensor) -> Tensor:
    return values.float() if values.dtype == torch.float64 else values


def _tensor(values: np.ndarray | None) -> Tensor | None:
    return None if values is None else torch.from_numpy(np.array(values))
