"""Ingredient `training`: how long to train, when to validate, when to stop. `loop.fit` takes its entries."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sacristan.configs import Map
from sacristan.configs.nearest import misspelt
from sacristan.ingredients.commands import NEEDED, TrainingParts, make_parts, print_drawn
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.errors import ConfigError
from sacristan.observers.record.directions import MEASURED

if TYPE_CHECKING:
    import torch

    from sacristan.ingredients.precision import MixedPrecision

__all__ = ["TrainingSettings", "check_patience", "ingredient"]

# Metrics of `loop.fit`; a task may measure others.
_MEASURED = tuple(f"val/{name}" for name in MEASURED)
# Ingredients of the commands that take steps of a training.
_NEEDED = (*NEEDED, "optimizer", "amp")

ingredient = Ingredient("training")


@ingredient.config
def config() -> None:
    # passes over the training data
    epochs = 30
    # epochs between validations
    val_interval = 1
    # optimizer steps between logged values of the training loss, lr and gradient norm
    log_interval = 50
    # metric for the best checkpoint and early stopping
    monitor = "val/loss"
    # better direction of monitor: auto (max for accuracy and r2, else min), min, max
    mode: Literal["auto", "min", "max"] = "auto"
    # validations without improvement after which training stops; None never stops early
    patience: int | None = None
    # smallest change that patience counts as an improvement; the best checkpoint ignores it
    min_delta = 0.0
    # if loss, gradients or weights are NaN or infinite: stop, skip (that step), rollback (and halve lr), ignore
    on_nan: Literal["stop", "skip", "rollback", "ignore"] = "stop"
    # validate and keep an average of the weights: ema (over steps), swa (over epochs); None for no average
    average: Literal["ema", "swa"] | None = None
    # share of the average kept at each step, with ema; between 0 and 1
    average_decay = 0.999
    # first epoch of the average; None for 1 with ema, for the last quarter of the training with swa
    average_start: int | None = None
    # validate in torch.inference_mode, which is faster; modules must not reuse tensors from it in training
    inference_mode = False


config.legacy(epochs=0)  # an experiment without this ingredient trains in another way


@ingredient.check
def _check_config(config: Map) -> None:
    """Reject invalid lengths, and a misspelt metric to monitor."""
    TrainingSettings(**config)
    if near := misspelt(config.monitor, _MEASURED):
        raise ConfigError(
            f"training.monitor: got {config.monitor!r}, which is not measured; did you mean {near}? There are: "
            f"{', '.join(_MEASURED)}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The settings that `loop.fit` takes by name: the entries of the ingredient `training`.

    Attributes:
        epochs: Passes over the training data, those of earlier sessions included.
        val_interval: Epochs between validations; the last epoch is validated in any case.
        log_interval: Optimizer steps between logged values of the training.
        monitor: Metric that decides the best epoch, such as `val/loss` or `val/accuracy`.
        mode: Which way is better: `min`, `max`, or `auto`: max for accuracy and r2, else min.
        patience: Validations without improvement after which training stops; None never stops early.
        min_delta: Smallest change of the metric that patience counts as an improvement.
        on_nan: What to do once the loss, a gradient or a weight is NaN or infinite: `stop`, `skip` the step, `rollback`
            to the newest state at half the rates, or `ignore`.
        average: What is validated and kept as the best in place of the weights: `ema`, `swa`, or None.
        average_decay: Of `ema`, the share of the average that stays after a step.
        average_start: First epoch that the average counts; None for 1 with `ema`, for the last quarter with `swa`.
        inference_mode: Whether validations compute in `torch.inference_mode`.

    Raises:
        ConfigError: If a value is out of its range.
    """

    epochs: int
    val_interval: int = 1
    log_interval: int = 50
    monitor: str = "val/loss"
    mode: str = "auto"
    patience: int | None = None
    min_delta: float = 0.0
    on_nan: str = "stop"
    average: str | None = None
    average_decay: float = 0.999
    average_start: int | None = None
    inference_mode: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "val_interval", "log_interval"):
            if getattr(self, name) < 1:
                raise ConfigError(f"training.{name}: got {getattr(self, name)}, expected at least 1")
        check_patience(self.patience, self.min_delta)
        if self.on_nan not in ("stop", "skip", "rollback", "ignore"):
            raise ConfigError(f"training.on_nan: got {self.on_nan!r}, expected stop, skip, rollback or ignore")
        if self.average not in (None, "ema", "swa"):
            raise ConfigError(f"training.average: got {self.average!r}, expected ema, swa or None")
        if not 0 < self.average_decay < 1:
            raise ConfigError(
                f"training.average_decay: got {self.average_decay}, expected more than 0 and less than 1, such as 0.999"
            )
        if self.average_start is not None and not 1 <= self.average_start <= self.epochs:
            raise ConfigError(
                f"training.average_start: got {self.average_start}, expected an epoch of the training: "
                f"1 to {self.epochs}"
            )


def check_patience(patience: int | None, min_delta: float) -> None:
    """Check the settings of early stopping; a `patience` of None never stops early."""
    if patience is not None and patience < 1:
        raise ConfigError(f"training.patience: got {patience}, expected at least 1, or None to never stop early")
    if not min_delta >= 0:
        raise ConfigError(f"training.min_delta: got {min_delta}, expected 0 or more")


@ingredient.command(unobserved=True, needs=_NEEDED)
def find_lr(_run: Any) -> None:
    """Try learning rates from 1e-7 to 10, and suggest one: a table, and with matplotlib the picture lr_range.png."""
    from sacristan.ingredients.inspection.searches import draw_range, print_range, try_rates

    parts, opt, precision = _to_train(_run)
    tried = try_rates(parts.model, parts.loss, parts.data.train, opt, precision)
    print_range(tried)
    print_drawn(draw_range, tried, Path("lr_range.png"))


@ingredient.command(unobserved=True, needs=_NEEDED)
def find_batch_size(_run: Any) -> None:
    """Find the largest data.batch_size that fits the GPU's memory; draw memory and speed by size."""
    from sacristan.ingredients.inspection.searches import draw_sizes, largest_batch, print_sizes

    parts, opt, precision = _to_train(_run)
    sizes = largest_batch(parts.model, parts.loss, parts.data.train, opt, precision)
    print_sizes(sizes)
    if sizes.largest:
        is_all = sizes.largest == parts.data.train.num_samples
        print(f"data.batch_size={sizes.largest} fits" + (", which is all training samples" if is_all else ""))
        print_drawn(draw_sizes, sizes, Path("batch_size.png"))
    else:
        print("not even one sample fits; choose a smaller model or amp.dtype=auto")


def _to_train(run: Any) -> tuple[TrainingParts, torch.optim.Optimizer, MixedPrecision]:
    """Return the parts of a training with its optimizer and precision."""
    parts = make_parts(run, pretrained=True)
    opt = run.ingredients["optimizer"].make_optimizer(parts.model, parts.loss)
    return parts, opt, run.ingredients["amp"].make_amp(parts.device)


@ingredient.named_config
def fast() -> None:
    """Two epochs, to try things out."""
    epochs = 2
