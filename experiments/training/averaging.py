"""`Averaging`: an average of the weights that training goes through, validated and kept in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from experiments.training.callbacks import Callback
from experiments.training.modes import evaluating
from ingredients.config.seed import look_stream
from ingredients.errors import ConfigError
from ingredients.models.freezing import is_held_in_eval

if TYPE_CHECKING:
    from experiments.training.trainer import Trainer

__all__ = ["Averaging"]


class Averaging(Callback):
    """Averages the weights of the model in the course of a training; validations measure the average.

    From the epoch `start` on, the average is what is validated, and the best of what was validated is kept as the best
    weights. States of the training hold model and average. `fit` adds one where `average` is given. Parameters of the
    loss or the task are not averaged: they are measured and kept as they are after the step.

    Args:
        kind: `ema`: exponentially, after every step, statistics of normalisation layers, too. `swa`: the mean of the
            weights at the end of each epoch (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407), for which the
            statistics of batch normalisation are computed anew, by a pass through the training data.
        decay: Of `ema`: share of the average that stays after a step.
        start: First epoch that counts.
    """

    def __init__(self, kind: str, decay: float, start: int) -> None:
        self._kind = kind
        self._decay = decay
        self._start = start
        self._averaged: AveragedModel | None = None
        self._last_epoch = 0
        self._loaded: Mapping[str, Any] = {}

    def start(self, trainer: Trainer) -> None:
        """Put back the average of the state to resume from.

        Raises:
            ConfigError: If there is no validation part.
        """
        if not trainer.data.val.num_samples:
            raise ConfigError(
                "training.average: there is no validation part, by which the average is kept as the best weights; set "
                "data.val_fraction above 0"
            )
        if self._loaded.get("averaged") is not None:
            self._average(trainer).load_state_dict(self._loaded["averaged"])
            self._last_epoch = self._loaded["last_epoch"]
        self._loaded = {}

    def after_step(self, trainer: Trainer) -> None:
        """Take in the weights after a step, for `ema`."""
        if self._kind == "ema" and trainer.place.epoch + 1 >= self._start:
            averaged, model = self._average(trainer), _plain(trainer.model)
            averaged.update_parameters(model)
            # torch averages whole numbers, too, and cuts off what is behind the point: 3 becomes 2.
            for mine, theirs in zip(averaged.module.buffers(), model.buffers(), strict=True):
                if not mine.is_floating_point():
                    mine.copy_(theirs)

    def after_epoch(self, trainer: Trainer) -> None:
        """Take in the weights after an epoch, for `swa`; once, also where the training was stopped and resumed here."""
        epoch = trainer.place.epoch + 1
        if self._kind == "swa" and epoch >= self._start:
            averaged = self._average(trainer)
            if self._last_epoch < epoch:
                averaged.update_parameters(_plain(trainer.model))
                self._last_epoch = epoch
            update_batch_norms(averaged.module, trainer, epoch)

    def _average(self, trainer: Trainer) -> AveragedModel:
        if self._averaged is None:
            is_ema = self._kind == "ema"
            average = get_ema_multi_avg_fn(self._decay) if is_ema else None
            self._averaged = AveragedModel(_plain(trainer.model), multi_avg_fn=average, use_buffers=is_ema)
            trainer.evaluated = self._averaged.module
        return self._averaged

    def state_dict(self) -> dict[str, Any]:
        """Return the average."""
        averaged = None if self._averaged is None else self._averaged.state_dict()
        return {"averaged": averaged, "last_epoch": self._last_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the average until the training starts."""
        self._loaded = state


def _plain(model: nn.Module) -> nn.Module:
    """Return a model without `torch.compile`, which cannot be copied."""
    return getattr(model, "_orig_mod", model)


@torch.no_grad()
def update_batch_norms(model: nn.Module, trainer: Trainer, epoch: int) -> None:
    """Compute the statistics of batch normalisation anew: means over the training data as an epoch has them.

    As `torch.optim.swa_utils.update_bn`, for any task; dropout stays off, and frozen layers stay as they are.
    """
    norms = [
        module
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        and module.running_mean is not None
        and not is_held_in_eval(module)
    ]
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
