"""Ingredient `loss`: what training minimises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from configs import Map
from ingredients.config.ingredient import Ingredient

if TYPE_CHECKING:
    import torch

    from ingredients.datasets.batches import Data
    from ingredients.losses.building import Loss

__all__ = ["ingredient", "make_loss"]

ingredient = Ingredient("loss")


@ingredient.config
def config() -> None:
    # cross_entropy, focal, nll, bce, mse, l1, smooth_l1, or package.module:Class; None takes the task's usual one
    name: str | None = None
    # arguments of its class, such as label_smoothing, gamma, pos_weight, beta
    options: dict[str, Any] = {}
    # weights of the classes: None, balanced (by their number in the training part), or a list
    class_weights: Literal["balanced"] | list[float] | None = None


@ingredient.check
def check_config(config: Map) -> None:
    """Refuse a loss that is not there, before the data are."""
    from ingredients.losses.building import check_loss_name

    check_loss_name(config.name)


@ingredient.capture
def make_loss(data: Data, _config: Map, device: torch.device | str = "cpu") -> Loss:
    """Return the configured loss for `data`, on `device`; by default the usual one of the task.

    Args:
        data: Says the task and the number of classes, labels or target values.
        device: Where its weights are wanted: that of the model.

    Returns:
        The loss of outputs (B, num_outputs) and targets, a scalar; `num_outputs` is what the model must return, and
        `predict` and `probabilities` read its outputs.

    Raises:
        LossError: If there is no such loss, or it does not fit the task or the targets.
        ConfigError: If an option is none of its class's.

    Example:
        criterion = loss.make_loss(batches, device=where)
        network = model.make_model(batches.input_shape, criterion.num_outputs, seed).to(where)
    """
    from ingredients.losses.building import build_loss

    return build_loss(_config.name, _config.options, _config.class_weights, data, device)
