"""The parts of a supervised training as they are configured, for commands of ingredients that try something out.

An ingredient imports no other one: a command takes those that its experiment is composed of, by their names.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sacristan.ingredients.datasets.batches import Data
    from sacristan.ingredients.losses.building import Loss

__all__ = ["NEEDED", "TrainingParts", "make_parts"]

# What a command that calls `make_parts` needs.
NEEDED = ("data", "device", "loss", "model")


@dataclasses.dataclass(frozen=True)
class TrainingParts:
    """A model with its data and its loss, on a device."""

    device: torch.device
    data: Data
    loss: Loss
    model: nn.Module


def make_parts(run: Any, *, pretrained: bool = False) -> TrainingParts:
    """Build the model, data and other parts that the run's experiment would train; its command needs `NEEDED`.

    `pretrained` loads `model.weights`.
    """
    seed, parts = run.config["seed"], run.ingredients
    where = parts["device"].make_device(seed)
    source = parts["data"].make_data(seed, where)
    criterion = parts["loss"].make_loss(source, device=where)
    network = parts["model"].make_model(
        source.input_shape,
        criterion.num_outputs,
        seed,
        dtype=source.input_dtype,
        preparation=source.preparation,
        pretrained=pretrained,
    )
    return TrainingParts(where, source, criterion, network.to(where))
