"""Checks before the first step that the parts of a training fit together."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from experiments.training.modes import evaluating
from experiments.training.monitor import Monitor
from experiments.training.tasks import Supervised, Task
from experiments.training.trainer import Trainer
from ingredients.datasets.batches import Data
from ingredients.errors import ConfigError, ModelError
from ingredients.losses.modules import BinaryFocalLoss, FocalLoss
from ingredients.models.freezing import is_held_in_eval

__all__ = ["check_parts"]

_log = logging.getLogger(__name__)

# Last layers with the losses that apply their function themselves.
_SQUASHED = (
    ((nn.Softmax, nn.Softmax2d), (nn.CrossEntropyLoss, FocalLoss)),
    (nn.Sigmoid, (nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss, BinaryFocalLoss)),
)


def check_parts(trainer: Trainer, task: Task, monitor: Monitor, added: Sequence[str]) -> None:
    """Refuse, before the first step, what would fail or surprise later.

    Args:
        trainer: The training.
        task: Its task.
        monitor: Its monitor.
        added: Names of metrics that callbacks add to those of the task.

    Raises:
        LabError: If the parts do not fit together.
    """
    trainer.check_optimizers()
    data = trainer.data
    if not data.val.num_samples and monitor.patience is not None:
        raise ConfigError(
            "training.patience: got a number, but there is no validation part; set data.val_fraction above 0"
        )
    if isinstance(task, Supervised):
        _check_batch_norms(trainer.model, data)
        _tell_twice_squashed(trainer.model, task.module)
    measured = [f"val/{name}" for name in task.check(trainer.model, data, trainer.amp)]
    if measured:
        measured += added
        monitor.check(measured)
    for schedule in trainer.schedules.values():
        schedule.check(measured)


def _tell_twice_squashed(model: nn.Module, loss: nn.Module) -> None:
    """Warn of a last layer whose function the loss applies once more."""
    last = model
    while children := list(last.children()):
        last = children[-1]
    for layers, losses in _SQUASHED:
        if isinstance(last, layers) and isinstance(loss, losses):
            _log.warning(
                "model: the last layer is %s, and %s takes scores before it, as it applies one itself; trained like "
                "this a model learns slowly and is never sure: leave the layer out",
                type(last).__name__,
                type(loss).__name__,
            )


def _check_batch_norms(model: nn.Module, data: Data) -> None:
    """Refuse training batches of one sample where BatchNorm would see a single value per channel.

    Whether it does depends on the size of its input, so one sample is put through the model, in evaluation mode.
    """
    ranks = data.train.ranks
    size = 1 if ranks.options.get("sync_batch_norm") else ranks.size
    if data.train.last_batch_size // size != 1:
        return
    refusing: list[str] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].numel() == inputs[0].shape[1]:
            refusing.append(type(module).__name__)

    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    hooks = [norm.register_forward_pre_hook(look) for norm in norms if not is_held_in_eval(norm)]
    if not hooks:
        return
    try:
        with torch.no_grad(), evaluating(model):
            for inputs, _ in data.train.epoch(0):
                model(inputs[:1])
                break
    except (RuntimeError, ValueError, IndexError, TypeError):
        return  # The check of the loss says what does not fit.
    finally:
        for hook in hooks:
            hook.remove()
    if refusing:
        every = data.train.batch_size == size
        which, remedy = ("every", "raise data.batch_size") if every else ("the last", "set data.drop_last=True")
        of_rank = f" for one of {size} processes" if size > 1 else ""
        raise ModelError(f"{which} training batch holds one sample{of_rank}, which {refusing[0]} cannot take; {remedy}")
