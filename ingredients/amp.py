"""Ingredient `amp`: automatic mixed precision, gradient clipping, accumulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from sacristan.configs import Map
from sacristan.ingredients.commands import NEEDED, make_parts
from sacristan.ingredients.config.ingredient import Ingredient

if TYPE_CHECKING:
    import torch

    from sacristan.ingredients.precision import MixedPrecision

__all__ = ["ingredient", "make_amp"]

ingredient = Ingredient("amp")


@ingredient.config
def config() -> None:
    # precision of the forward pass: off (float32), float16, bfloat16, auto (the best for the device)
    dtype: Literal["off", "float16", "bfloat16", "auto"] = "off"
    # initial scale of the loss, with float16
    init_scale = 65536.0
    # factor that raises the scale after growth_interval steps without overflow
    growth_factor = 2.0
    # factor that lowers the scale after an overflow
    backoff_factor = 0.5
    # steps without overflow before the scale grows
    growth_interval = 2000
    # maximum norm of all gradients together; None for no limit
    clip_norm: float | None = None
    # maximum absolute value of a gradient; None for no limit
    clip_value: float | None = None
    # micro-batches of data.batch_size in one optimizer step
    accumulate = 1


@ingredient.capture
def make_amp(device: torch.device, _config: Map) -> MixedPrecision:
    """Return the configured mixed precision, clipping and accumulation for `device`.

    Args:
        device: The device of the model.

    Raises:
        PrecisionError: If a value is out of range.

    Example:
        precision = amp.make_amp(where)
        inputs, targets = next(batches.train.epoch(1))
        with precision.autocast():
            value = criterion(network(inputs), targets)
        precision.backward(value)
    """
    from sacristan.ingredients.precision import MixedPrecision

    options = {name: value for name, value in _config.items() if name != "dtype"}
    return MixedPrecision(device, _config.dtype, **options)


@ingredient.command(unobserved=True, needs=NEEDED)
def check(_run: Any) -> None:
    """Show what this device supports, and speed and loss of the configured model against float32."""
    from sacristan.ingredients.inspection.profiling import measure, print_check

    parts = make_parts(_run)
    print_check(measure(parts.model, parts.loss, parts.data, parts.device))
