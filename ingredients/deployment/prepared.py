"""`Prepared`: a model with the preparation of its data around it, from values as the data have them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ingredients.datasets.fitted import Preparation

__all__ = ["Prepared"]


class Prepared(nn.Module):
    """Normalises inputs, calls a model, and returns values in the targets' own unit; scores of classes stay scores.

    Images that are stored as bytes are 0 to 1 before they are normalised. Categories and words are numbers already.

    Args:
        model: Takes inputs as the data's batches have them.
        by: What the data were prepared by.

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
        """Return what the model makes of inputs that are not prepared."""
        if self.mean is not None and self.std is not None:
            inputs = (inputs - self.mean) / self.std
        if self.is_filled:
            inputs = torch.where(torch.isnan(inputs), torch.zeros_like(inputs), inputs)
        return self.own_unit(self.model(inputs))

    def own_unit(self, outputs: Tensor) -> Tensor:
        """Return outputs of the model in the unit of the targets."""
        if self.target_mean is None or self.target_std is None:
            return outputs
        return outputs * self.target_std + self.target_mean

    def undo(self, inputs: Tensor) -> Tensor:
        """Return prepared inputs as they were before."""
        if self.mean is None or self.std is None:
            return inputs
        return inputs * self.std + self.mean


def _tensor(values: np.ndarray | None) -> Tensor | None:
    return None if values is None else torch.from_numpy(np.array(values))
