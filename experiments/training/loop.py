"""The training loop, in plain torch: `fit` puts a training together, a `Session` runs it.

Experiments call `fit`, `evaluate` and `predict`.

Shapes: B samples in a batch, N samples in a part of the data, K classes or labels, D target values.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.running.starting_state import check_left, check_waited
from experiments.training.averaging import Averaging
from experiments.training.callbacks import Callback, Callbacks
from experiments.training.checks import check_parts
from experiments.training.divergence import DivergenceCheck
from experiments.training.evaluation import evaluate, evaluate_and_predict, predict
from experiments.training.monitor import Monitor
from experiments.training.ranked import RankedSteps, check_ranked
from experiments.training.recovery import Recovery
from experiments.training.session import Session, steps_per_epoch
from experiments.training.speed import Speed
from experiments.training.tasks import Task, as_task
from experiments.training.trainer import LogScalar, Ranked, Trainer
from experiments.training.triage import Triage, replay_if_asked
from experiments.training.unfreezing import Unfreezing
from ingredients.checkpoints.checkpointer import Checkpointer
from ingredients.checkpoints.training_state import Place
from ingredients.config.seed import look_stream
from ingredients.datasets.batches import Data
from ingredients.losses.building import Loss
from ingredients.models.freezing import freezings_of
from ingredients.precision.mixed_precision import MixedPrecision
from ingredients.ranks.group import ALONE, Ranks
from ingredients.scheduler import Schedule
from ingredients.training import check_average, check_lengths

__all__ = ["FitResult", "evaluate", "evaluate_and_predict", "fit", "predict", "steps_per_epoch"]


@dataclasses.dataclass
class FitResult:
    """Result of a training.

    Attributes:
        epochs: Epochs completed.
        steps: Steps, skipped ones included.
        best_epoch: Epoch of the best monitored value; 0 if there was none.
        best: That value; NaN if there was none.
        stopped_early: Whether patience ended the training, or a callback.
        speed: Figures of the steps of this session; None if there were none.
    """

    epochs: int = 0
    steps: int = 0
    best_epoch: int = 0
    best: float = math.nan
    stopped_early: bool = False
    # No part of what a training comes to: resumed, it is the same training.
    speed: Speed | None = dataclasses.field(default=None, repr=False, compare=False)


def fit(
    model: nn.Module,
    data: Data,
    loss: Loss | Task,
    optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
    *,
    log: LogScalar,
    epochs: int,
    scheduler: Schedule | Mapping[str, Schedule] | None = None,
    amp: MixedPrecision | None = None,
    checkpointer: Checkpointer | None = None,
    val_interval: int = 1,
    log_interval: int = 50,
    monitor: str = "val/loss",
    mode: str = "auto",
    patience: int | None = None,
    min_delta: float = 0.0,
    on_nan: str = "stop",
    average: str | None = None,
    average_decay: float = 0.999,
    average_start: int | None = None,
    inference_mode: bool = False,
    callbacks: Sequence[Callback] = (),
) -> FitResult:
    """Train `model` on `data.train`, validating on `data.val` every `val_interval` epochs.

    Logs every `log_interval` steps and at the last one: `train/loss` (mean since the last value), `train/lr`,
    `train/grad_norm` (before clipping), with float16 `amp/scale` and `amp/skipped`; after each validation the metrics
    of `evaluate` as `val/...`. The step of each value is the number of steps done: a step is what is done with one
    effective batch, an optimizer step unless the task takes several. Of several optimizers the names are
    `train/NAME/lr` and `train/NAME/grad_norm`.

    Args:
        model: On the device of the data; for a `Loss` it takes inputs (B, *input_shape), returns outputs (B, K) or
            (B, D).
        data: Its `train` yields batches, for a `Loss` inputs and targets: classes (B,), labels (B, K) or values (B, D).
            `val` may be empty.
        loss: Takes outputs and targets of a batch; or a `Task`, which says what is done with a batch.
        optimizer: Over the model's parameters; one that recomputes its loss, such as LBFGS, gets a closure. Several by
            name, for a task that takes its own steps.
        log: Called as `log(name, value, step)`, such as `_run.log_scalar`.
        epochs: Passes over the training data, those of earlier sessions included.
        scheduler: The learning-rate schedule; constant without one. Several, by the names of their optimizers.
        amp: Mixed precision, clipping and accumulation; none of them without one.
        checkpointer: Saves the best and newest states, and finds the one to resume from; without one, none is saved.
        val_interval: Epochs between validations; the last epoch is validated in any case.
        log_interval: Optimizer steps between logged values of the training.
        monitor: Metric that tells the best epoch, such as `val/loss` or `val/accuracy`.
        mode: Which way is better: `min`, `max`, or `auto`: max for accuracy and r2, else min.
        patience: Validations without improvement after which training stops; None never stops early.
        min_delta: Smallest change of the metric that patience counts as an improvement.
        on_nan: What to do once the loss, a gradient or a weight is NaN or infinite: `stop`, `skip` the step, `rollback`
            to the newest state at half the rates, or `ignore`; see `Recovery`.
        average: What is validated and kept as the best in place of the weights: `ema`, `swa`, or None; see `Averaging`.
        average_decay: Of `ema`, the share of the average that stays after a step.
        average_start: First epoch that the average counts; None for 1 with `ema`, for the last quarter with `swa`.
        inference_mode: Whether validations compute in `torch.inference_mode`.
        callbacks: What is done beside the training, see `Callback`.

    Returns:
        How many epochs and steps were done, the best epoch, and how fast it was. The model keeps the weights of the
        last epoch; `Checkpointer.restore_best` loads the best ones.

    Raises:
        LabError: If the parts do not fit together; before the first step.
        TrainingError: If the loss or a weight is NaN or infinite, unless `on_nan` is "ignore". No state is saved then;
            with a checkpointer the step is written down beside its states, see `experiments.training.bundle`.
        CheckpointError: If a state cannot be read or written.
        Terminated: If a signal asked for the end; the state after the last whole step is saved.

    Example:
        opt = optimizer.make_optimizer(network, criterion)
        result = loop.fit(network, batches, criterion, opt, log=_run.log_scalar, **training)
        print(result.best_epoch, result.best)
    """
    amp = amp or MixedPrecision(next(model.parameters()).device)
    task = as_task(loss)
    trainer = Trainer(model, task, data, _by_name(optimizer), _by_name(scheduler), amp, log)
    best = Monitor(monitor, mode, patience, min_delta)
    check_lengths(epochs, val_interval, log_interval)
    recovery = [Recovery(on_nan)] if on_nan in ("skip", "rollback") else []
    implied = implied_callbacks(model, epochs, average, average_decay, average_start)
    asked = Callbacks([*recovery, *callbacks, *implied])
    ranks = getattr(data.train, "ranks", ALONE)
    check_ranked(trainer, task, ranks, average, on_nan)
    with look_stream():
        check_parts(trainer, task, best, asked.metrics)
    parts = parts_of(trainer, task, best, asked)
    replay_if_asked(trainer, parts, asked, checkpointer)
    keeper = checkpointer or Checkpointer(Path(), {}, best=False, last=False)
    check = DivergenceCheck(model, task, keeper, amp.accumulate, on_nan)
    _begin(trainer, parts, keeper, check, ranks)
    if keeper.branched_from is not None:
        check_left(keeper.branched_from, trainer.place.epoch, epochs)
        check_waited(keeper.branched_from, best.name, best.waited, best.patience)
    triage = Triage(trainer, parts, asked, checkpointer, on_nan)
    for recovering in recovery:
        recovering.triage = triage

    session = Session(
        trainer,
        task,
        parts,
        best,
        asked,
        keeper,
        check,
        ranks,
        epochs=epochs,
        val_interval=val_interval,
        log_interval=log_interval,
        inference_mode=inference_mode,
    )
    session.run(triage)
    place = trainer.place
    return FitResult(place.epoch, place.step, best.epoch, best.value, session.is_stopped, session.watch.report())


def _begin(
    trainer: Trainer, parts: Mapping[str, Any], keeper: Checkpointer, check: DivergenceCheck, ranks: Ranks
) -> None:
    """Put the state to begin at into the training, and let its processes know of each other."""
    # In a reference cycle, as that of checkpointer and check, the workers of a loader would take seconds to end.
    training = weakref.ref(trainer)

    def check_state(place: Place) -> None:
        running = training()
        if running is not None and running.ranked is not None:
            running.ranked.settle()
        check.state(place)

    trainer.place = keeper.begin(
        parts, preparation=trainer.data.preparation, split=trainer.data.split, check=check_state, ranks=ranks
    )
    if ranks.size > 1:
        trainer.ranked = _sharded(trainer, ranks) if ranks.options["shard"] else RankedSteps(trainer, ranks)


def _sharded(trainer: Trainer, ranks: Ranks) -> Ranked:
    from experiments.training.sharded import ShardedSteps  # torch takes its time to import what that needs

    return ShardedSteps(trainer, ranks)


def implied_callbacks(
    model: nn.Module, epochs: int, average: str | None, average_decay: float, average_start: int | None
) -> list[Callback]:
    """Return the callbacks that the model and the settings ask for."""
    implied: list[Callback] = [Unfreezing(freezing, epochs) for freezing in freezings_of(model)]
    check_average(average, average_decay, average_start, epochs)
    if average is not None:
        first = 1 if average == "ema" else epochs * 3 // 4 + 1
        implied.append(Averaging(average, average_decay, average_start or first))
    return implied


def parts_of(trainer: Trainer, task: Task, monitor: Monitor, callbacks: Callbacks) -> dict[str, Any]:
    """Return by name what a state of the training holds; None stands for what there is none of."""
    parts: dict[str, Any] = {"model": trainer.model, "scheduler": None, "amp": trainer.amp, "monitor": monitor}
    for name, optimizer in trainer.optimizers.items():
        parts[f"optimizer.{name}" if name else "optimizer"] = optimizer
    for name, schedule in trainer.schedules.items():
        parts[f"scheduler.{name}" if name else "scheduler"] = schedule
    if task.is_changed_by_training:
        parts["loss"] = task.module
    if task.keeps_state:
        parts["task"] = task
    if callbacks:
        parts["callbacks"] = callbacks
    return parts


def _by_name(given: Any) -> dict[str, Any]:
    """Return optimizers or schedules by name; a sole one has the name ""."""
    if isinstance(given, Mapping):
        return dict(given)
    return {} if given is None else {"": given}
