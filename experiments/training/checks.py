"""Whether the parts of a training fit together: looked at before the first step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from experiments.training.metrics import metric_names
from experiments.training.modes import evaluating
from experiments.training.monitor import Monitor
from ingredients.datasets.batches import Data
from ingredients.errors import ConfigError, LossError, ModelError
from ingredients.losses.building import Loss, check_loss
from ingredients.scheduler import Schedule

__all__ = ["check_parts"]


def _check_trained(loss: Loss, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that leaves out what of the loss is to be trained."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    left = [name for name, parameter in loss.parameters.items() if id(parameter) not in held]
    if left:
        raise LossError(
            f"loss: {type(loss.module).__name__} has parameters of its own ({', '.join(left)}) that the optimizer does "
            "not have; give it the loss, too: make_optimizer(network, criterion)"
        )


def check_parts(
    model: nn.Module,
    data: Data,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    monitor: Monitor,
    scheduler: Schedule | None,
) -> None:
    """Refuse, before the first step, what would fail or surprise later.

    Raises:
        LabError: If the parts do not fit together.
    """
    _check_trained(loss, optimizer)
    if not data.val.num_samples and monitor.patience is not None:
        raise ConfigError(
            "training.patience: got a number, but there is no validation part; set data.val_fraction above 0"
        )
    measured = [f"val/{name}" for name in metric_names(loss)] if data.val.num_samples else []
    if measured:
        monitor.check(measured)
    if scheduler is not None:
        scheduler.check(measured)
    _check_batch_norms(model, data)
    check_loss(loss, model, data)


def _check_batch_norms(model: nn.Module, data: Data) -> None:
    """Refuse training batches of one sample where BatchNorm would see a single value per channel.

    Whether it does depends on the size of its input, so one sample is put through the model, in evaluation mode.
    """
    if data.train.last_batch_size != 1:
        return
    refusing: list[str] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].numel() == inputs[0].shape[1]:
            refusing.append(type(module).__name__)

    kinds = (nn.modules.batchnorm._BatchNorm,)
    hooks = [module.register_forward_pre_hook(look) for module in model.modules() if isinstance(module, kinds)]
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
        every = data.train.batch_size == 1
        which, remedy = ("every", "raise data.batch_size") if every else ("the last", "set data.drop_last=True")
        raise ModelError(f"{which} training batch holds one sample, which {refusing[0]} cannot take; {remedy}")
