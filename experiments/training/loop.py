"""The training loop, in plain torch: `fit` puts a training together, a session runs it.

Shapes: B samples in a batch, N samples in a part of the data, K classes or labels, D target values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sacristan.experiments.running.starting_state import check_left, check_waited
from sacristan.experiments.training import LogScalar, Task, Trainer
from sacristan.experiments.training.callbacks import Callback, Callbacks, implied_callbacks
from sacristan.experiments.training.checks import check_parts, check_ranked
from sacristan.experiments.training.evaluation import Monitor, as_task, evaluate, evaluate_and_predict, predict
from sacristan.experiments.training.gradients import grouped
from sacristan.experiments.training.guard import NonFiniteGuard, Recovery
from sacristan.experiments.training.meters import per_weight
from sacristan.experiments.training.progress import Speed, StepLog, Stopwatch, TrainingProgress
from sacristan.experiments.training.ranked import RankedSteps
from sacristan.experiments.training.triage import replay_if_asked
from sacristan.ingredients.checkpoints import Checkpointer
from sacristan.ingredients.config.seed import look_stream
from sacristan.ingredients.datasets.batches import Batches, Data
from sacristan.ingredients.losses import Loss
from sacristan.ingredients.models.modules import evaluation_weights, switching
from sacristan.ingredients.precision import MixedPrecision
from sacristan.ingredients.ranks.group import ALONE, Ranks
from sacristan.ingredients.scheduler import Schedule
from sacristan.ingredients.training import TrainingSettings

__all__ = ["FitResult", "evaluate", "evaluate_and_predict", "fit", "predict", "steps_per_epoch"]


@dataclasses.dataclass
class FitResult:
    """The outcome of a training.

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
    # Not compared: a resumed training has the same outcome at another speed.
    speed: Speed | None = dataclasses.field(default=None, repr=False, compare=False)


def fit(
    model: nn.Module,
    data: Data,
    loss: Loss | Task,
    optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
    *,
    log: LogScalar,
    scheduler: Schedule | Mapping[str, Schedule] | None = None,
    amp: MixedPrecision | None = None,
    checkpointer: Checkpointer | None = None,
    callbacks: Sequence[Callback] = (),
    **training: Any,
) -> FitResult:
    """Train `model` on `data.train` for `epochs` passes, validating on `data.val` every `val_interval` epochs.

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
        scheduler: The learning-rate schedule; constant without one. Several, by the names of their optimizers.
        amp: Mixed precision, clipping and accumulation; none of them without one.
        checkpointer: Saves the best and newest states, and finds the one to resume from; without one, none is saved.
        callbacks: What is done beside the training, see `Callback`.
        **training: `epochs`, and other settings of the ingredient `training`, see `TrainingSettings`.

    Returns:
        How many epochs and steps were done, the best epoch, and how fast it was. The model keeps the weights of the
        last epoch; `Checkpointer.restore_best` loads the best ones.

    Raises:
        LabError: If the parts do not fit together; before the first step.
        TrainingError: If the loss or a weight is NaN or infinite, unless `on_nan` is "ignore". No state is saved then;
            with a checkpointer the step is written down beside its states, see `sacristan.experiments.training.triage`.
        CheckpointError: If a state cannot be read or written.
        Terminated: If a signal asked for the end; the state after the last whole step is saved.

    Example:
        opt = optimizer.make_optimizer(network, criterion)
        result = loop.fit(network, batches, criterion, opt, log=_run.log_scalar, **training)
        print(result.best_epoch, result.best)
    """
    settings = TrainingSettings(**training)
    trainer = Trainer(
        model,
        as_task(loss),
        data,
        _by_name(optimizer),
        _by_name(scheduler),
        amp or MixedPrecision(next(model.parameters()).device),
        log,
    )
    best = Monitor(settings.monitor, settings.mode, settings.patience, settings.min_delta)
    recovery = [Recovery(settings.on_nan)] if settings.on_nan in ("skip", "rollback") else []
    everyone = Callbacks([*recovery, *callbacks, *implied_callbacks(model, settings)])
    ranks = getattr(data.train, "ranks", ALONE)
    check_ranked(trainer, ranks, settings)
    with look_stream():
        check_parts(trainer, best, everyone.metrics)
    parts = _parts_of(trainer, best, everyone)
    for each in switching(trainer.optimizers.values()):
        each.train()
    replay_if_asked(trainer, parts, everyone, checkpointer)
    guard = NonFiniteGuard(trainer, parts, everyone, checkpointer, settings.on_nan, *recovery)
    keeper = checkpointer or Checkpointer(Path(), {}, best=False, last=False)
    session = _TrainingSession(trainer, settings, parts, best, everyone, keeper, guard, ranks)
    session.begin()
    session.run()
    place = trainer.place
    return FitResult(place.epoch, place.step, best.epoch, best.value, session.is_stopped, session.watch.report())


def _by_name(parts: Any) -> dict[str, Any]:
    """Return optimizers or schedules by name; a sole one has the name ""."""
    if isinstance(parts, Mapping):
        return dict(parts)
    return {} if parts is None else {"": parts}


def _parts_of(trainer: Trainer, monitor: Monitor, callbacks: Callbacks) -> dict[str, Any]:
    """Return the parts of a state of the training by name; None for an absent one."""
    parts: dict[str, Any] = {"model": trainer.model, "scheduler": None, "amp": trainer.amp, "monitor": monitor}
    for name, optimizer in trainer.optimizers.items():
        parts[f"optimizer.{name}" if name else "optimizer"] = optimizer
    for name, schedule in trainer.schedules.items():
        parts[f"scheduler.{name}" if name else "scheduler"] = schedule
    if trainer.task.is_changed_by_training:
        parts["loss"] = trainer.task.module
    if trainer.task.keeps_state:
        parts["task"] = trainer.task
    if callbacks:
        parts["callbacks"] = callbacks
    return parts


@dataclasses.dataclass
class _TrainingSession:
    """One session of a training: its epochs, each trained, validated and saved, until the last one or until a stop."""

    trainer: Trainer
    settings: TrainingSettings
    parts: Mapping[str, Any]
    monitor: Monitor
    callbacks: Callbacks
    keeper: Checkpointer
    guard: NonFiniteGuard
    ranks: Ranks
    num_steps: int = 0

    def __post_init__(self) -> None:
        self.watch = Stopwatch(self.trainer.data.train, self.trainer.amp.device)
        self.step_log = StepLog(self.trainer)

    @property
    def is_stopped(self) -> bool:
        """True if patience or a callback has ended the training."""
        return self.monitor.exhausted or self.trainer.place.stopped

    def begin(self) -> None:
        """Load the state to resume from, and connect the ranks."""
        trainer, keeper, ranks = self.trainer, self.keeper, self.ranks
        data = trainer.data
        place = trainer.place = keeper.begin(self.parts, preparation=data.preparation, split=data.split, ranks=ranks)
        if ranks.size > 1:
            trainer.ranked = _ranked_steps(trainer, ranks)
        steps_done = math.ceil(place.batch / trainer.amp.accumulate)
        remaining = (self.settings.epochs - place.epoch) * steps_per_epoch(data.train, trainer.amp.accumulate)
        self.num_steps = place.step - steps_done + remaining
        if keeper.branched_from is not None:
            check_left(keeper.branched_from, place.epoch, self.settings.epochs)
            check_waited(keeper.branched_from, self.monitor.name, self.monitor.waited, self.monitor.patience)

    def run(self) -> None:
        """Train until the last epoch, or until the training is stopped."""
        trainer, callbacks, place = self.trainer, self.callbacks, self.trainer.place
        with (
            self._progress() as progress,
            self.keeper.session(),
            self.guard.session(),
            callbacks.session(trainer),
        ):
            callbacks.start(trainer)
            while place.epoch < self.settings.epochs and not self.is_stopped:
                epoch = place.epoch + 1
                self.guard.begin_epoch()
                self._train(epoch, progress)
                progress.trained(place.step)
                metrics = self._validate(epoch)
                self._end(epoch, metrics)
                progress.epoch(epoch, metrics)
            self.guard.check_weights()
            for each in switching(trainer.optimizers.values()):
                each.eval()
            callbacks.end(trainer)

    def _progress(self) -> TrainingProgress:
        place = self.trainer.place
        has_validation = self.trainer.data.val.num_samples > 0
        return TrainingProgress(
            self.settings.epochs,
            self.num_steps,
            place.step,
            num_validations=_num_validations(place.epoch, self.settings.epochs, self.settings.val_interval)
            if has_validation
            else 0,
            may_stop_early=self.monitor.patience is not None,
        )

    def _is_validated(self, epoch: int) -> bool:
        """Return whether the validation interval includes an epoch; the last one always counts."""
        return epoch % self.settings.val_interval == 0 or epoch == self.settings.epochs

    def _train(self, epoch: int, progress: TrainingProgress) -> None:
        """Take the remaining steps of an epoch, fewer if the training is stopped."""
        trainer, callbacks, keeper = self.trainer, self.callbacks, self.keeper
        task, place, amp = trainer.task, trainer.place, trainer.amp
        num_steps, log_interval = self.num_steps, self.settings.log_interval
        sole = None if trainer.steps_itself else trainer.optimizers[""]
        take_step, is_due = trainer.bound_step(), keeper.is_due
        schedule = trainer.schedules.get("")
        losses, keep = place.losses, _way_to_keep_losses(trainer)
        divides = "loss" in task.sums

        groups = self._groups(epoch)  # held, so that its loader lives until the watch has stopped
        for group in groups:
            place.batch += len(group)
            weight = trainer.weight_of(group) if divides else 0
            step = place.step + 1
            trainer.is_logged = is_logged = step % log_interval == 0 or step == num_steps
            batch_loss, stepped = take_step(group)
            del group
            if batch_loss is None:
                losses.append(None)  # the task skipped it
            else:
                losses.append(keep(per_weight(batch_loss.detach(), weight) if divides else batch_loss))
            place.step = step
            if is_logged:
                self._log(step, progress)
            if sole is None:
                trainer.after_step()
            else:
                amp.update()
                sole.zero_grad()
                if stepped and schedule is not None:
                    schedule.after_step()
            if callbacks.look_at_steps:
                callbacks.after_step(trainer)
                trainer.clear_gradients()
                take_step = trainer.bound_step()  # the callback may have changed its parts
            if is_due(step):
                self._save()
            if place.stopped:
                break
        self._end_steps()

    def _groups(self, epoch: int) -> Iterable[list[Any]]:
        """Start the remaining batches of an epoch; each group of them makes one step."""
        trainer, place = self.trainer, self.trainer.place
        trainer.model.train()
        if trainer.task.module is not None:
            trainer.task.module.train()
        self.watch.start(place)
        groups = grouped(self.watch.epoch(epoch, place.batch), trainer.amp.accumulate)
        return self.keeper.until_stopped(groups) if trainer.data.train.is_read else groups

    def _log(self, step: int, progress: TrainingProgress) -> None:
        """Log and show the steps since the last time, once their losses are checked."""
        place = self.trainer.place
        mean = self.step_log.log(step)
        progress.step(step, mean)
        self.guard.check_losses(mean)
        place.losses.clear()
        place.scalars.clear()

    def _end_steps(self) -> None:
        """Save the state if a signal asks for it, and log the values of the task for the epoch."""
        trainer, place = self.trainer, self.trainer.place
        if self.keeper.is_stopping:
            self._save()
        self.guard.check_losses()
        self.watch.stop(place)
        for name, value in trainer.task.of_epoch().items():
            trainer.log(f"train/{name}", value, place.step)

    def _validate(self, epoch: int) -> dict[str, float]:
        """Return the metrics of the validation after an epoch; none where the interval leaves it out."""
        trainer, callbacks, place = self.trainer, self.callbacks, self.trainer.place
        if trainer.ranked is not None:
            trainer.ranked.settle()
        with self.keeper.saving_if_stopped(self._save):
            callbacks.after_epoch(trainer)
        if not (self._is_validated(epoch) or place.stopped):
            return {}
        optimizers = trainer.optimizers.values()
        with self.keeper.saving_if_stopped(self._save), evaluation_weights(optimizers):
            measured = evaluate(
                trainer.evaluated,
                trainer.data.val,
                trainer.task,
                trainer.amp,
                inference_mode=self.settings.inference_mode,
            )
        metrics = {f"val/{name}": value for name, value in measured.items()}
        for name, value in metrics.items():
            trainer.log(name, value, place.step)
        with evaluation_weights(optimizers):
            callbacks.after_validation(trainer, metrics)
        trainer.clear_gradients()
        return metrics

    def _end(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Count an epoch, and save the state after it."""
        trainer, place = self.trainer, self.trainer.place
        place.stopped = bool(self.ranks.agree(place.stopped))
        place.epoch, place.batch = epoch, 0
        for schedule in trainer.schedules.values():
            schedule.after_epoch(metrics)
        improved = bool(metrics) and self.monitor.update(metrics, epoch)
        self._save(metrics if improved else None, final=epoch == self.settings.epochs or self.is_stopped)

    def _save(self, best: Mapping[str, float] | None = None, *, final: bool = False) -> None:
        """Save the state if it is due, and has no loss or weight that is not finite."""
        trainer = self.trainer
        self.keeper.save(
            trainer.place, self.parts, best, final=final, evaluated=trainer.evaluated, check=self._check_state
        )

    def _check_state(self) -> None:
        if self.trainer.ranked is not None:
            self.trainer.ranked.settle()
        self.guard.check_losses()
        self.guard.check_weights()


def _num_validations(done: int, epochs: int, interval: int) -> int:
    """Return how many of the remaining epochs are validated; the last one always is."""
    is_last_extra = done < epochs and epochs % interval > 0
    return max(0, epochs // interval - done // interval) + is_last_extra


def _ranked_steps(trainer: Trainer, ranks: Ranks) -> RankedSteps:
    if not ranks.options["shard"]:
        return RankedSteps(trainer, ranks)
    from sacristan.experiments.training.sharded import ShardedSteps  # torch takes its time to import what that needs

    return ShardedSteps(trainer, ranks)


def _way_to_keep_losses(trainer: Trainer) -> Callable[[Tensor], float | Tensor]:
    """Return the function that keeps the loss of a step until it is logged."""
    # A number costs nothing on the CPU; on a GPU it would have to be waited for.
    if trainer.amp.device.type == "cpu":
        return Tensor.item
    # Of a compiled model, the next step may write where the loss lies.
    is_compiled = any(hasattr(part, "_orig_mod") for part in trainer.task.modules(trainer.model))
    return (lambda loss: loss.detach().clone()) if is_compiled else Tensor.detach


def steps_per_epoch(batches: Batches, accumulate: int = 1) -> int:
    """Return the number of optimizer steps of an epoch.

    Args:
        batches: The training part.
        accumulate: Micro-batches in a step; the last step of an epoch may have fewer.

    Example:
        steps = loop.steps_per_epoch(batches.train, precision.accumulate)
    """
    return math.ceil(len(batches) / accumulate)
