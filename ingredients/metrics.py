"""Ingredient `metrics`: metrics of torchmetrics, measured besides the loss."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sacristan.configs import Map
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.observers.record.directions import note_better

if TYPE_CHECKING:
    import torch

    from sacristan.ingredients.datasets.batches import Data
    from sacristan.ingredients.losses import Loss

__all__ = ["add_metrics", "ingredient"]

ingredient = Ingredient("metrics")


@ingredient.config
def config() -> None:
    # classes of torchmetrics (extra: metrics) by name in the log: {f1: F1Score, top3: {name: Accuracy, top_k: 3},
    # confusion: ConfusionMatrix}; task and number of classes follow from the loss
    use: dict[str, Any] = {}
    # also measure training batches during training; logged once an epoch as train/NAME
    on_train = False


@ingredient.capture
def add_metrics(loss: Loss, data: Data, _config: Map, _run: Any, device: torch.device | str = "cpu") -> Loss:
    """Return a loss with the configured metrics, which are measured wherever the loss is evaluated.

    Args:
        loss: The result of `loss.make_loss`; returned unchanged if no metrics are configured.
        data: The data, for the names of the classes.
        device: Device of the model.

    Raises:
        LossError: If torchmetrics is not installed, or a metric rejects its arguments.
        ConfigError: If torchmetrics has no such class.

    Example:
        criterion = metrics.add_metrics(loss.make_loss(batches, device=where), batches, device=where)
    """
    if not _config.use:
        return loss
    from sacristan.ingredients.losses.measures import build_measures

    measures = build_measures(_config.use, loss, data.classes, device)
    if _run is not None:
        note_better(_run.info, measures.directions)
    return dataclasses.replace(loss, measures=measures, measures_training=_config.on_train)
