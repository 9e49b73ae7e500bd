"""Ingredient `training`: how long to train, when to look, when to stop. `loop.fit` takes its entries."""

from __future__ import annotations

from typing import Literal

from ingredients.config.ingredient import Ingredient

__all__ = ["ingredient"]

ingredient = Ingredient("training")


@ingredient.config
def config() -> None:
    # passes over the training data
    epochs = 30
    # epochs between validations
    val_interval = 1
    # optimizer steps between logged values of the training loss, lr and gradient norm
    log_interval = 50
    # metric that chooses the best checkpoint and stops early
    monitor = "val/loss"
    # which way is better: auto (max for accuracy and r2, else min), min, max
    mode: Literal["auto", "min", "max"] = "auto"
    # validations without improvement after which training stops; None never stops early
    patience: int | None = None
    # smallest change of the metric that counts as an improvement
    min_delta = 0.0
    # once the loss or a weight is NaN or infinite: stop (the run fails, its last good state stays), ignore
    on_nan: Literal["stop", "ignore"] = "stop"


@ingredient.named_config
def fast() -> None:
    """Two epochs, to try things out."""
    epochs = 2
