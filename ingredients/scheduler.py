"""Ingredient `scheduler`: every class of `torch.optim.lr_scheduler` by name, with warm-up."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from sacristan.configs import Map
from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import build, import_object, is_dotted_path
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.errors import SchedulerError

if TYPE_CHECKING:
    import torch

__all__ = ["Schedule", "build_schedule", "ingredient", "make_scheduler"]

ingredient = Ingredient("scheduler")


@ingredient.config
def config() -> None:
    # class of torch.optim.lr_scheduler (CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, ...), or package.module:Class
    name: str | None = None
    # arguments of the class; a missing length (T_max, total_steps, total_iters) becomes that of the whole training
    options: dict[str, Any] = {}
    # when the scheduler steps: after every epoch, or after every optimizer step
    interval: Literal["epoch", "step"] = "epoch"
    # metric for ReduceLROnPlateau, read after each validation
    metric = "val/loss"
    # length of the linear warm-up of lr, optimizer steps; 0 for none
    warmup_steps = 0


@ingredient.check
def check_config(config: Map) -> None:
    """Reject an unknown class and an invalid warm-up before the optimizer is built."""
    _checked_class(config.name, config.interval, config.warmup_steps)


@ingredient.capture
def make_scheduler(optimizer: torch.optim.Optimizer, epochs: int, steps_per_epoch: int, _config: Map) -> Schedule:
    """Build the configured learning-rate schedule; without a name, rates are constant after the warm-up.

    Args:
        optimizer: The optimizer whose learning rates to schedule.
        epochs: Epochs of the whole training, which give the lengths that the config leaves out.
        steps_per_epoch: Optimizer steps in an epoch, see `loop.steps_per_epoch`.

    Raises:
        SchedulerError: If there is no such class, or it rejects its options.
        ConfigError: If the class does not take an option.

    Example:
        opt = optimizer.make_optimizer(network, criterion)
        steps = loop.steps_per_epoch(batches.train, precision.accumulate)
        schedule = scheduler.make_scheduler(opt, training.epochs, steps)
        loop.fit(network, batches, criterion, opt, scheduler=schedule, log=_run.log_scalar, **training)
    """
    return build_schedule(optimizer, epochs, steps_per_epoch, **_config)


class Schedule:
    """A learning-rate schedule after a linear warm-up.

    Call `after_step` after each optimizer step that was not skipped, and `after_epoch` after each epoch. The scheduler
    itself starts after the warm-up.

    Args:
        optimizer: The optimizer whose learning rates to schedule.
        scheduler: The scheduler of torch, or None for constant rates.
        interval: When the scheduler steps: `epoch` or `step`.
        metric: Name of the metric for `ReduceLROnPlateau`.
        warmup_steps: Length of the warm-up, optimizer steps.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, scheduler: Any, interval: str, metric: str, warmup_steps: int
    ) -> None:
        from torch.optim.lr_scheduler import LinearLR, ReduceLROnPlateau

        self.scheduler = scheduler
        self.metric = metric
        self._optimizer = optimizer
        # What the rates of the scheduler are multiplied by, see `slow_down`.
        self._factor = 1.0
        self._on_plateau = isinstance(scheduler, ReduceLROnPlateau)
        self._each_step = interval == "step" and scheduler is not None
        self._warmup = LinearLR(optimizer, 1 / warmup_steps, 1.0, warmup_steps - 1) if warmup_steps > 1 else None
        self._warmup_left = max(warmup_steps - 1, 0)
        # Whether a step was taken at the full rate; then the scheduler begins.
        self._is_warm = not self._warmup_left

    @property
    def has_length(self) -> bool:
        """True if the schedule may depend on the length of the training, unlike constant rates and a plateau."""
        return self.scheduler is not None and not self._on_plateau

    def check(self, metrics: Collection[str]) -> None:
        """Check, before training, that validations measure the metric of a plateau.

        Args:
            metrics: Names of the validation metrics; empty without validation.

        Raises:
            SchedulerError: If they do not measure it.
        """
        if not self._on_plateau or self.metric in metrics:
            return
        if not metrics:
            raise SchedulerError(
                "scheduler.name: ReduceLROnPlateau reads a validation metric, but there is no validation part; "
                "set data.val_fraction above 0"
            )
        raise SchedulerError(
            f"scheduler.metric: got {self.metric!r}, which is not measured; there are: {', '.join(metrics)}"
        )

    def after_step(self) -> None:
        """Advance by one optimizer step."""
        if self._warmup is not None and self._warmup_left:
            self._warmup_left -= 1
            self._advance(self._warmup)
            return
        self._is_warm = True
        if self._each_step:
            self._advance(self.scheduler)

    def after_epoch(self, metrics: Mapping[str, float]) -> None:
        """Advance by one epoch.

        Args:
            metrics: Metrics of the epoch's validation by name; empty without validation.

        Raises:
            SchedulerError: If the metric of a plateau is missing.
        """
        if self.scheduler is None or self._each_step or not self._is_warm:
            return
        if not self._on_plateau:
            self._advance(self.scheduler)
        elif metrics:
            self.check(metrics)
            self._advance(self.scheduler, metrics[self.metric])

    def _advance(self, scheduler: Any, *metric: float) -> None:
        # Many schedulers compute a rate from the last one, so they see it without the factor.
        self._multiply_rates(1 / self._factor)
        scheduler.step(*metric)
        self._multiply_rates(self._factor)

    def _multiply_rates(self, factor: float) -> None:
        if factor != 1.0:
            for group in self._optimizer.param_groups:
                group["lr"] *= factor

    def advance(self, steps: int, epochs: int) -> None:
        """Advance from the start by the steps and epochs of an earlier training; a plateau does not change.

        Args:
            steps: Optimizer steps in total.
            epochs: Epochs in total.
        """
        done = 0
        for epoch in range(1, epochs + 1):
            until = steps * epoch // epochs
            for _ in range(until - done):
                self.after_step()
            self.after_epoch({})
            done = until
        for _ in range(steps - done):
            self.after_step()

    def slow_down(self, factor: float) -> None:
        """Multiply the current rates, and all later ones, by a factor.

        Args:
            factor: The factor, such as 0.5.
        """
        self._factor *= factor
        self._multiply_rates(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler and the warm-up, to resume from here."""
        return {
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "warmup": self._warmup.state_dict() if self._warmup is not None else None,
            "warmup_left": self._warmup_left,
            "is_warm": self._is_warm,
            "factor": self._factor,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned.

        Args:
            state: The state, also of an earlier version of the lab.
        """
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self._warmup is not None:
            self._warmup.load_state_dict(state["warmup"])
        self._warmup_left = state["warmup_left"]
        self._is_warm = state.get("is_warm", not self._warmup_left)
        self._factor = state.get("factor", 1.0)


def build_schedule(
    optimizer: torch.optim.Optimizer,
    epochs: int,
    steps_per_epoch: int,
    name: str | None = None,
    options: Mapping[str, Any] = {},
    interval: str = "epoch",
    metric: str = "val/loss",
    warmup_steps: int = 0,
) -> Schedule:
    """Build a schedule without Sacred."""
    cls = _checked_class(name, interval, warmup_steps)
    if cls is None:
        return Schedule(optimizer, None, interval, metric, warmup_steps)
    # The first step already has a rate of the warm-up, so the warm-up takes one call less than it has steps.
    waits = max(warmup_steps - 1, 0)
    if interval == "step":
        length = epochs * steps_per_epoch - waits
    else:
        # Epochs without a step at the full rate do not count.
        length = epochs - waits // steps_per_epoch
    options = {**_lengths(cls, options, max(length, 1)), **options}
    scheduler = build(cls, options, "scheduler.options", SchedulerError, optimizer=optimizer)
    return Schedule(optimizer, scheduler, interval, metric, warmup_steps)


def _checked_class(name: str | None, interval: str, warmup_steps: int) -> type | None:
    if warmup_steps < 0:
        raise SchedulerError(f"scheduler.warmup_steps: got {warmup_steps}, expected 0 or more")
    cls = None if name is None else _scheduler_class(name)
    if cls is not None and cls.__name__ == "ReduceLROnPlateau" and interval == "step":
        raise SchedulerError(
            "scheduler.interval: got 'step', but ReduceLROnPlateau reads a validation metric; use interval=epoch"
        )
    return cls


def _lengths(cls: type, options: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return the lengths that the options leave out, from the training's."""
    parameters = inspect.signature(cls).parameters
    if "total_steps" in parameters and "epochs" in options:
        return {}
    names = ("T_max", "total_steps", "total_iters")
    return {name: length for name in names if name in parameters and name not in options}


_MADE_OF_OBJECTS = ("LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler")


def _scheduler_class(name: str) -> type:
    from torch.optim import lr_scheduler

    if is_dotted_path(name):
        return import_object(name, "scheduler.name")
    if name in _MADE_OF_OBJECTS:
        raise SchedulerError(
            f"scheduler.name: got {name!r}, which takes functions or schedulers, which a config cannot hold; write "
            "package.module:function, your own function that takes the optimizer and returns the scheduler"
        )
    classes = {key: value for key, value in vars(lr_scheduler).items() if isinstance(value, type)}
    schedules = {
        key: cls
        for key, cls in classes.items()
        if issubclass(cls, lr_scheduler.LRScheduler) and not key.endswith(("LRScheduler", *_MADE_OF_OBJECTS))
    }
    if name not in schedules:
        hint = suggestion(name, schedules, f"there are: {', '.join(sorted(schedules))}")
        raise SchedulerError(f"scheduler.name: got {name!r}, which torch.optim.lr_scheduler does not have; {hint}")
    return schedules[name]
