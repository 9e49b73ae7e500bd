"""Ingredient `loss`: the loss that training minimises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from sacristan.configs import Map
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.errors import LossError

if TYPE_CHECKING:
    import torch

    from sacristan.ingredients.datasets.batches import Data
    from sacristan.ingredients.losses import Loss

__all__ = ["ingredient", "make_loss"]

ingredient = Ingredient("loss")


@ingredient.config
def config() -> None:
    # cross_entropy, focal, nll, bce, binary_focal, mse, l1, smooth_l1, or package.module:Class; None uses the default
    # of the task
    name: str | None = None
    # arguments of its class, such as label_smoothing, gamma, pos_weight, beta
    options: dict[str, Any] = {}
    # class weights: None, balanced (inversely proportional to the class counts of the training part), or a list
    class_weights: Literal["balanced"] | list[float] | None = None
    # several losses instead of one, by name: {ce: {name: cross_entropy}, focal: {name: focal, weight: 0.5, options:
    # {gamma: 3}}}; training minimises their weighted sum, and logs each as train/NAME and val/NAME
    parts: dict[str, Any] = {}


config.legacy(name="")  # an experiment without this ingredient has another loss


@ingredient.check
def check_config(config: Map) -> None:
    """Reject an unknown loss before data are loaded."""
    from sacristan.ingredients.losses import check_loss_name

    check_loss_name(config.name)
    if config.parts and (config.name, config.options, config.class_weights) != (None, {}, None):
        raise LossError("loss.parts: got loss.name, options or class_weights as well; move them into one of the parts")
    for part in config.parts.values():
        if isinstance(part, Map):
            check_loss_name(part.get("name"))


@ingredient.capture
def make_loss(data: Data, _config: Map, device: torch.device | str = "cpu") -> Loss:
    """Build the configured loss, by default that of the task.

    Args:
        data: The data, which determine the task and the number of classes, labels or target values.
        device: Device of its weights, that of the model.

    Returns:
        A function of outputs (B, num_outputs) and targets that returns a scalar. The model must return `num_outputs`
        outputs; `predict` and `probabilities` read them.

    Raises:
        LossError: If there is no such loss, or it does not fit the task or the targets.
        ConfigError: If its class does not take an option.

    Example:
        criterion = loss.make_loss(batches, device=where)
        network = model.make_model(batches.input_shape, criterion.num_outputs, seed).to(where)
    """
    from sacristan.ingredients.losses import build_loss, build_losses

    if _config.parts:
        return build_losses(_config.parts, data, device)
    return build_loss(_config.name, _config.options, _config.class_weights, data, device)
