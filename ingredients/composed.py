"""The parts of a supervised training as they are configured, for commands of ingredients that try something out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ingredients import data, device, loss, model

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ingredients.datasets.batches import Data
    from ingredients.losses.building import Loss

__all__ = ["NEEDED", "Parts", "make_parts"]

# What a command that calls `make_parts` needs.
NEEDED = (data.ingredient, device.ingredient, loss.ingredient, model.ingredient)


@dataclasses.dataclass(frozen=True)
class Parts:
    """A model with its data and its loss, on a device."""

    device: torch.device
    data: Data
    loss: Loss
    model: nn.Module


def make_parts(run: Any, *, pretrained: bool = False, tuned: bool = True) -> Parts:
    """Return what the run's experiment would train.

    Args:
        run: The run of a command that needs `NEEDED`.
        pretrained: Whether to load `model.weights`.
        tuned: Whether the model's settings of memory and speed count.
    """
    seed = run.config["seed"]
    where = device.make_device(seed)
    source = data.make_data(seed, where)
    criterion = loss.make_loss(source, device=where)
    told: dict[str, Any] = {"dtype": source.input_dtype, "preparation": source.preparation, "pretrained": pretrained}
    told["tuned"] = tuned
    network = model.make_model(source.input_shape, criterion.num_outputs, seed, **told).to(where)
    return Parts(where, source, criterion, network)
