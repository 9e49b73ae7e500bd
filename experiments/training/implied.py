"""Callbacks that settings ask for: an average of the weights, and parts of a model that are trained later."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sacristan.experiments.training.callbacks import Callback
from sacristan.ingredients.config.seed import look_stream
from sacristan.ingredients.errors import ConfigError
from sacristan.ingredients.models.freezing import Freezing, freezings_of, is_held_in_eval
from sacristan.ingredients.models.modes import evaluating, switching
from sacristan.ingredients.training import check_average

if TYPE_CHECKING:
    from sacristan.experiments.training.trainer import Trainer

__all__ = ["Averaging", "Unfreezing", "implied_callbacks"]

_log = logging.getLogger(__name__)


class Averaging(Callback):
    """Averages the weights of the model during a training; validations measure the average.

    From the epoch `start` on, validations measure the average, and the best one is kept as the best weights. States of
    the training hold model and average. `fit` adds an `Averaging` if `average` is set. Parameters of the loss or the
    task are not averaged.

    Args:
        kind: `ema`: exponentially, after every step, with the statistics of normalisation layers. `swa`: the mean of
            the weights at the end of each epoch (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407), for which a
            pass through the training data recomputes the statistics of batch normalisation.
        decay: Of `ema`: share of the average that stays after a step.
        start: First epoch of the average.
    """

    def __init__(self, kind: str, decay: float, start: int) -> None:
        self._kind = kind
        self._decay = decay
        self._start = start
        self._averaged: AveragedModel | None = None
        self._last_epoch = 0
        self._loaded: Mapping[str, Any] = {}

    def start(self, trainer: Trainer) -> None:
        for optimizer in switching(trainer.optimizers.values()):
            raise ConfigError(
                f"training.average: got {self._kind!r}, but {type(optimizer).__name__} evaluates its own average; "
                "leave training.average out"
            )
        if not trainer.data.val.num_samples:
            raise ConfigError(
                "training.average: there is no validation part to choose the best average by; set data.val_fraction "
                "above 0"
            )
        if self._loaded.get("averaged") is not None:
            self._average(trainer).load_state_dict(self._loaded["averaged"])
            self._last_epoch = self._loaded["last_epoch"]
        self._loaded = {}

    def after_step(self, trainer: Trainer) -> None:
        if self._kind == "ema" and trainer.place.epoch + 1 >= self._start:
            averaged, model = self._average(trainer), _uncompiled(trainer.model)
            averaged.update_parameters(model)
            # torch averages whole numbers, too, and cuts off the decimals: 3 becomes 2.
            for mine, theirs in zip(averaged.module.buffers(), model.buffers(), strict=True):
                if not mine.is_floating_point():
                    mine.copy_(theirs)

    def after_epoch(self, trainer: Trainer) -> None:
        epoch = trainer.place.epoch + 1
        if self._kind == "swa" and epoch >= self._start:
            averaged = self._average(trainer)
            if self._last_epoch < epoch:  # else it was resumed between this and the validation
                averaged.update_parameters(_uncompiled(trainer.model))
                self._last_epoch = epoch
            _update_batch_norms(averaged.module, trainer, epoch)

    def _average(self, trainer: Trainer) -> AveragedModel:
        if self._averaged is None:
            is_ema = self._kind == "ema"
            average = get_ema_multi_avg_fn(self._decay) if is_ema else None
            self._averaged = AveragedModel(_uncompiled(trainer.model), multi_avg_fn=average, use_buffers=is_ema)
            trainer.evaluated = self._averaged.module
        return self._averaged

    def state_dict(self) -> dict[str, Any]:
        averaged = None if self._averaged is None else self._averaged.state_dict()
        return {"averaged": averaged, "last_epoch": self._last_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = state  # until the training starts


def _uncompiled(model: nn.Module) -> nn.Module:
    """Return a model without `torch.compile`, which cannot be copied."""
    return getattr(model, "_orig_mod", model)


@torch.no_grad()
def _update_batch_norms(model: nn.Module, trainer: Trainer, epoch: int) -> None:
    """Recompute the statistics of batch normalisation as means over an epoch of the training data.

    Like `torch.optim.swa_utils.update_bn`, for any task; dropout stays off, and frozen layers stay as they are.
    """
    all_norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in all_norms if norm.running_mean is not None and not is_held_in_eval(norm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    task = trainer.task
    try:
        with look_stream(), evaluating(*task.modules(model)):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a mean over all batches
                norm.train()
            for batch in trainer.data.train.epoch(epoch):
                with trainer.amp.autocast():
                    task.measure(model, batch)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


class Unfreezing(Callback):
    """Trains frozen parts of a model from an epoch on.

    The epoch alone decides which parts are frozen, so a resumed training needs no state of it. `fit` adds one for each
    model that has such parts.

    Args:
        freezing: The frozen parts of the model.
        epochs: Epochs of the training; a warning names parts that stay frozen in all of them.
    """

    def __init__(self, freezing: Freezing, epochs: int) -> None:
        self._freezing = freezing
        never = freezing.frozen_after(epochs)
        if never:
            _log.warning("model.unfreeze: %s stay frozen: the training has %d epochs", ", ".join(never), epochs)

    def start(self, trainer: Trainer) -> None:
        self._freezing.begin_epoch(trainer.place.epoch + 1)

    def after_epoch(self, trainer: Trainer) -> None:
        epoch = trainer.place.epoch + 2
        opened = self._freezing.opened_in(epoch)
        if opened:
            _log.info("from epoch %d on, %s are trained", epoch, ", ".join(opened))
        self._freezing.begin_epoch(epoch)


def implied_callbacks(
    model: nn.Module, epochs: int, average: str | None, average_decay: float, average_start: int | None
) -> list[Callback]:
    """Return the callbacks that a model and the settings ask for."""
    implied: list[Callback] = [Unfreezing(freezing, epochs) for freezing in freezings_of(model)]
    check_average(average, average_decay, average_start, epochs)
    if average is not None:
        first = 1 if average == "ema" else epochs * 3 // 4 + 1
        implied.append(Averaging(average, average_decay, average_start or first))
    return implied
