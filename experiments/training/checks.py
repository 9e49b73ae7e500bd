"""Checks before the first step: the parts of a training fit together, and its processes can train together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sacristan.configs.map import abbreviated
from sacristan.experiments.training import Task, Trainer
from sacristan.experiments.training.evaluation import Monitor, Supervised
from sacristan.experiments.training.meters import check_merges
from sacristan.ingredients.datasets.batches import Data
from sacristan.ingredients.errors import ConfigError, LossError, ModelError
from sacristan.ingredients.losses.modules import BinaryFocalLoss, FocalLoss
from sacristan.ingredients.models.modules import evaluating, freezings_of, is_held_in_eval, switching
from sacristan.ingredients.precision import parameters_of, recomputes_loss
from sacristan.ingredients.ranks.group import Ranks, current
from sacristan.ingredients.training import TrainingSettings

_log = logging.getLogger(__name__)

# Last layers, with the losses that apply the same function themselves.
_SQUASHED = (
    ((nn.Softmax, nn.Softmax2d), (nn.CrossEntropyLoss, FocalLoss)),
    (nn.Sigmoid, (nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss, BinaryFocalLoss)),
)


def check_parts(trainer: Trainer, monitor: Monitor, added: Sequence[str]) -> None:
    """Check, before the first step, that the parts of a training fit together."""
    _check_optimizers(trainer)
    task, data = trainer.task, trainer.data
    if not data.val.num_samples and monitor.patience is not None:
        raise ConfigError(
            "training.patience: got a number, but there is no validation part; set data.val_fraction above 0"
        )
    if isinstance(task, Supervised):
        _check_batch_norms(trainer.model, data)
        _warn_of_squashing(trainer.model, task.module)
    _warn_of_statistics(trainer)
    measured = [f"val/{name}" for name in task.check(trainer.model, data, trainer.amp)]
    if measured:
        measured += added
        monitor.check(measured)
    for schedule in trainer.schedules.values():
        schedule.check(measured)


def _check_optimizers(trainer: Trainer) -> None:
    """Reject optimizers that leave out parameters of the task, and several for one ordinary step."""
    task, optimizers = trainer.task, trainer.optimizers
    if not trainer.steps_itself and list(optimizers) != [""]:
        raise ConfigError(
            f"optimizer: got {', '.join(optimizers) or 'none'} by name, expected one optimizer; "
            f"{type(task).__name__} takes more only if it writes its own method step(trainer, group)"
        )
    unknown = trainer.schedules.keys() - optimizers.keys()
    if unknown:
        raise ConfigError(f"scheduler: got {', '.join(sorted(unknown))}, for which there is no optimizer")
    _check_parameters_of_loss(trainer)
    trained = [parameter for optimizer in optimizers.values() for parameter in parameters_of(optimizer)]
    later = [glob for freezing in freezings_of(trainer.model) for glob in freezing.frozen_after(1)]
    if later and not any(parameter.requires_grad for parameter in trained):
        raise ModelError(
            f"model.unfreeze: nothing is trained in the first epoch, as {abbreviated(later, 3)} and all else are "
            "frozen; leave a part, such as the last layer, out of model.freeze and model.unfreeze"
        )


def _check_parameters_of_loss(trainer: Trainer) -> None:
    task = trainer.task
    held = {id(parameter) for optimizer in trainer.optimizers.values() for parameter in parameters_of(optimizer)}
    left = [name for name, parameter in task.parameters.items() if id(parameter) not in held]
    if left:
        raise LossError(
            f"loss: {type(task.module).__name__} has parameters of its own ({', '.join(left)}) that the "
            "optimizer does not have; give it the loss, too: make_optimizer(network, criterion)"
        )


def _warn_of_squashing(model: nn.Module, loss: nn.Module) -> None:
    """Warn of a last layer whose function the loss applies again."""
    last = model
    while children := list(last.children()):
        last = children[-1]
    for layers, losses in _SQUASHED:
        if isinstance(last, layers) and isinstance(loss, losses):
            _log.warning(
                "model: the last layer is %s, and %s takes scores before it, as it applies one itself; trained like "
                "this, a model learns slowly and is never sure: leave the layer out",
                type(last).__name__,
                type(loss).__name__,
            )


def _warn_of_statistics(trainer: Trainer) -> None:
    """Warn of statistics of BatchNorm that are not those of the weights, or the samples, that are evaluated."""
    norms = {
        f"{type(module).__name__} ({name})": module.running_mean is not None
        for name, module in trainer.model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not is_held_in_eval(module)
    }
    kept, without = (
        [name for name, keeps in norms.items() if keeps],
        [name for name, keeps in norms.items() if not keeps],
    )
    for optimizer in switching(trainer.optimizers.values()) if kept else ():
        _log.warning(
            "optimizer: %s evaluates other weights than it trains, and the statistics of %s are those of the trained "
            "ones, so metrics may be worse than the weights are; GroupNorm and LayerNorm have no statistics",
            type(optimizer).__name__,
            abbreviated(kept, 3),
        )
    if without:
        _log.warning(
            "model: BatchNorm without running statistics (%s) normalises by the batch in evaluation, too, so metrics "
            "and predictions depend on which samples share a batch; leave track_running_stats=False out, or use "
            "GroupNorm",
            abbreviated(without, 3),
        )


def _check_batch_norms(model: nn.Module, data: Data) -> None:
    """Reject batches of one sample where BatchNorm would normalise a single value per channel."""
    ranks = data.train.ranks
    size = 1 if ranks.options.get("sync_batch_norm") else ranks.size
    is_single = data.train.last_batch_size // size == 1
    # In evaluation, BatchNorm without running statistics normalises by the share of a rank.
    parts = {"validation": data.val, "test": data.test}
    ends = [name for name, part in parts.items() if part.num_samples and part.last_batch_size < 2 * ranks.size]
    norms = _norms_of_single_values(model, data) if is_single or ends else []
    refusing = [type(norm).__name__ for norm in norms if not is_held_in_eval(norm)]
    if is_single and refusing:
        every = data.train.batch_size == size
        which, remedy = ("every", "raise data.batch_size") if every else ("the last", "set data.drop_last=True")
        of_rank = f" for one of {size} processes" if size > 1 else ""
        raise ModelError(f"{which} training batch holds one sample{of_rank}, which {refusing[0]} cannot take; {remedy}")
    without = [type(norm).__name__ for norm in norms if norm.running_mean is None]
    if ends and without:
        of_rank = f" for one of {ranks.size} processes" if ranks.size > 1 else ""
        raise ModelError(
            f"the last {ends[0]} batch holds one sample{of_rank}, which {without[0]} without running statistics cannot "
            "take; leave track_running_stats=False out, or change data.batch_size"
        )


def _norms_of_single_values(model: nn.Module, data: Data) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return the BatchNorm layers that see a single value per channel, found by computing a sample."""
    refusing: list[nn.modules.batchnorm._BatchNorm] = []

    def look(module: Any, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].numel() == inputs[0].shape[1]:
            refusing.append(module)

    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    hooks = [norm.register_forward_pre_hook(look) for norm in norms]
    try:
        with torch.no_grad(), evaluating(model):
            for inputs, _ in data.train.epoch(0) if hooks else ():
                model(inputs[:1])
                break
    except (RuntimeError, ValueError, IndexError, TypeError):
        return (
            refusing[-1:] if refusing and refusing[-1].running_mean is None else []
        )  # the loss's check reports others
    finally:
        for hook in hooks:
            hook.remove()
    return refusing


def check_ranked(trainer: Trainer, ranks: Ranks, settings: TrainingSettings) -> None:
    """Reject, before the first step, a training that several processes cannot do together."""
    joined = current().size
    if ranks.size != joined:
        raise ConfigError(
            f"distributed: {joined} processes train together, but the data are for {ranks.size}; make them by "
            "data.make_data, which gives each process its share"
        )
    if any(isinstance(module, nn.DataParallel) for module in trainer.model.modules()):
        raise ConfigError(
            "model: got nn.DataParallel, whose threads share one interpreter, and which copies the model in each step; "
            "start a process for each GPU instead: torchrun --nproc-per-node N"
        )
    if joined == 1:
        return
    reasons = _obstacles(trainer, settings)
    if ranks.options["shard"]:
        _check_scalars(trainer.model)
        reasons |= _obstacles_to_sharding(trainer, settings)
    for reason in [reason for reason, applies in reasons.items() if applies][:1]:
        remedy = "set distributed.shard=False" if reason.startswith("distributed.shard") else "train in one process"
        raise ConfigError(f"distributed: {reason}, which {ranks.size} processes cannot; {remedy}")
    for name, optimizer in trainer.optimizers.items():
        _check_held(trainer, name, optimizer)
    _check_measures(trainer.task, trainer.data, ranks)


def _obstacles(trainer: Trainer, settings: TrainingSettings) -> dict[str, bool]:
    """Return what keeps several processes from training together, and whether it applies."""
    task, average, on_nan = trainer.task, settings.average, settings.on_nan
    return {
        f"{type(task).__name__} keeps a state, such as that of metrics.training": task.keeps_state,
        "model.unfreeze changes what is trained": bool(freezings_of(trainer.model)),
        "training.average=swa measures batches of one process": average == "swa",
        f"training.on_nan={on_nan} leaves steps out in one process": on_nan in ("skip", "rollback"),
        f"the model is wrapped already, as {type(trainer.model).__name__},": _is_wrapped(trainer.model),
    }


def _obstacles_to_sharding(trainer: Trainer, settings: TrainingSettings) -> dict[str, bool]:
    """Return what keeps several processes from splitting the parameters, and whether it applies."""
    task, optimizers = trainer.task, trainer.optimizers.values()
    switches = switching(optimizers)
    return {
        f"distributed.shard splits one optimizer, and {type(task).__name__} steps itself": trainer.steps_itself,
        "distributed.shard splits an optimizer that recomputes its loss": any(map(recomputes_loss, optimizers)),
        "distributed.shard splits the model, and the loss has parameters or statistics of its own": (
            task.is_changed_by_training
        ),
        "distributed.shard with amp.dtype=float16 would scale shares apart": trainer.amp.dtype == "float16",
        "distributed.shard splits what training.average averages": settings.average is not None,
        f"distributed.shard splits weights, and {''.join(type(each).__name__ for each in switches[:1])} evaluates "
        "others than it trains": bool(switches),
        "distributed.shard copies the model, and torch.compile forbids that": hasattr(trainer.model, "_orig_mod"),
        "distributed.shard copies the model, and model.freeze holds layers of it in evaluation mode": any(
            map(is_held_in_eval, trainer.model.modules())
        ),
    }


def _check_scalars(model: nn.Module) -> None:
    """Reject parameters that cannot be split over processes."""
    scalars = [name for name, parameter in model.named_parameters() if not parameter.ndim]
    if scalars:
        raise ConfigError(
            f"distributed.shard: got the scalar parameter {abbreviated(scalars, 3)}, which cannot be split; give "
            "it the shape (1,), or leave distributed.shard out"
        )


def _check_measures(task: Task, data: Data, ranks: Ranks) -> None:
    """Reject meters of one process, and metrics of which a process would measure nothing."""
    if data.val.num_samples or data.test.num_samples:
        check_merges(task.meter())
    has_measures = getattr(getattr(task, "criterion", None), "measures", None) is not None
    if has_measures and 0 < data.val.num_samples < ranks.size:
        raise ConfigError(
            f"metrics.use: got {data.val.num_samples} validation samples for {ranks.size} processes, expected at least "
            "one for each; start fewer processes"
        )


def _check_held(trainer: Trainer, name: str, optimizer: torch.optim.Optimizer) -> None:
    """Reject parameters that several processes do not exchange, and an optimizer that trains none."""
    task, label = trainer.task, f"optimizer {name}".rstrip()
    trained = {id(each) for each in parameters_of(optimizer) if each.requires_grad}
    held = {id(each) for module in task.modules(trainer.model) for each in module.parameters()}
    if outside := len(trained - held):
        raise ConfigError(
            f"distributed: the {label} trains {outside} parameters that are neither in the model nor in the module of "
            f"{type(task).__name__}, so they would not be exchanged; assign what has them to Task.module"
        )
    if not trained:
        raise ConfigError(f"distributed: the {label} has no parameters to train, as all are frozen; leave it out")


def _is_wrapped(model: nn.Module) -> bool:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    kinds = (FSDPModule, FullyShardedDataParallel, nn.parallel.DistributedDataParallel)
    return any(isinstance(module, kinds) for module in model.modules())
