"""One session of a training: its epochs, each trained, validated and saved, until the last one or until it is stopped.

The steps of an epoch are in one function, `Session._train`: what they need of the training is looked up once an epoch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from experiments.training.callbacks import Callbacks
from experiments.training.divergence import DivergenceCheck
from experiments.training.evaluation import evaluate
from experiments.training.monitor import Monitor
from experiments.training.progress import Progress
from experiments.training.speed import Stopwatch
from experiments.training.tasks import Task
from experiments.training.trainer import Trainer, grouped
from experiments.training.triage import Triage
from ingredients.checkpoints.checkpointer import Checkpointer
from ingredients.datasets.batches import Batches
from ingredients.ranks.group import Ranks

__all__ = ["Session", "steps_per_epoch"]


@dataclasses.dataclass
class Session:
    """A training from the place where it begins.

    Attributes:
        trainer: The training.
        task: What is done with a batch.
        parts: What its states hold, by name.
        monitor: Tells the best epoch, and whether patience is exhausted.
        callbacks: What is done beside the training.
        keeper: Saves its states.
        check: Raises once a loss or a weight is not finite.
        ranks: The processes that train together.
        epochs: Passes over the training data, those of earlier sessions included.
        val_interval: Epochs between validations.
        log_interval: Optimizer steps between logged values.
        inference_mode: Whether validations compute in `torch.inference_mode`.
        num_steps: Number of the last step, if nothing stops the training.
        watch: Times the steps.
    """

    trainer: Trainer
    task: Task
    parts: Mapping[str, Any]
    monitor: Monitor
    callbacks: Callbacks
    keeper: Checkpointer
    check: DivergenceCheck
    ranks: Ranks
    epochs: int
    val_interval: int
    log_interval: int
    inference_mode: bool
    num_steps: int = dataclasses.field(init=False)
    watch: Stopwatch = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        place, amp, batches = self.trainer.place, self.trainer.amp, self.trainer.data.train
        steps_done = math.ceil(place.batch / amp.accumulate)
        remaining = (self.epochs - place.epoch) * steps_per_epoch(batches, amp.accumulate)
        self.num_steps = place.step - steps_done + remaining
        self.watch = Stopwatch(batches, amp.device)

    @property
    def is_stopped(self) -> bool:
        """True if patience or a callback has ended the training."""
        return self.monitor.exhausted or self.trainer.place.stopped

    def run(self, triage: Triage) -> None:
        """Train until the last epoch, or until the training is stopped.

        Args:
            triage: Looks into the step at which a loss or a weight was not finite.
        """
        trainer, callbacks, place = self.trainer, self.callbacks, self.trainer.place
        with (
            Progress(self.epochs, self.num_steps, place.step) as progress,
            self.keeper.session(),
            triage.session(),
            callbacks.session(trainer),
        ):
            callbacks.start(trainer)
            while place.epoch < self.epochs and not self.is_stopped:
                epoch = place.epoch + 1
                triage.begin_epoch()
                self._train(epoch, progress)
                metrics = self._validate(epoch)
                self._end(epoch, metrics)
                progress.epoch(epoch, metrics)
            self.check.weights(place)
            callbacks.end(trainer)

    def _train(self, epoch: int, progress: Progress) -> None:
        """Take the remaining steps of an epoch, fewer if the training is stopped."""
        trainer, task, callbacks, keeper = self.trainer, self.task, self.callbacks, self.keeper
        place, amp, check = trainer.place, trainer.amp, self.check
        num_steps, log_interval = self.num_steps, self.log_interval
        sole = None if trainer.steps_itself else trainer.optimizers[""]
        take_step, is_due = trainer.bound_step(), keeper.is_due
        schedule = trainer.schedules.get("")
        # A number costs nothing on the CPU; on a GPU it would have to be waited for.
        on_cpu = amp.device.type == "cpu"
        is_sum, losses = task.is_sum, place.losses
        # Of a compiled model, the loss may lie where the next step writes.
        keeps = torch.clone if any(hasattr(part, "_orig_mod") for part in task.modules(trainer.model)) else _as_it_is

        trainer.model.train()
        if task.module is not None:
            task.module.train()
        self.watch.start(place)
        groups = grouped(self.watch.epoch(epoch, place.batch), amp.accumulate)
        for group in keeper.until_stopped(groups) if trainer.data.train.is_read else groups:
            place.batch += len(group)
            num_samples = sum(map(task.weight, group)) if is_sum else 0
            step = place.step + 1
            trainer.is_logged = is_logged = step % log_interval == 0 or step == num_steps
            batch_loss, stepped = take_step(group)
            del group
            if is_sum and batch_loss is not None:
                batch_loss = batch_loss.detach() / num_samples
            if batch_loss is None:
                losses.append(None)  # the task skipped it
            else:
                losses.append(batch_loss.item() if on_cpu else keeps(batch_loss.detach()))
            place.step = step
            if is_logged:
                mean = trainer.log_step(step)
                progress.step(step, mean)
                check.losses(place, mean)
                losses.clear()
                place.scalars.clear()
            if sole is None:
                trainer.after_step()
            else:
                amp.update()
                sole.zero_grad()
                if stepped and schedule is not None:
                    schedule.after_step()
            if callbacks.look_at_steps:
                callbacks.after_step(trainer)
                trainer.clear_added()
                take_step = trainer.bound_step()  # it may have changed what a step is made of
            if is_due(step):
                keeper.save(place, self.parts)
            if place.stopped:
                break
        if keeper.is_stopping:
            keeper.save(place, self.parts)
        check.losses(place)
        self.watch.stop(place)
        for name, value in task.of_epoch().items():
            trainer.log(f"train/{name}", value, place.step)

    def _validate(self, epoch: int) -> dict[str, float]:
        """Return the metrics of the validation after an epoch; none where the interval leaves it out."""
        trainer, callbacks, place = self.trainer, self.callbacks, self.trainer.place
        if trainer.ranked is not None:
            trainer.ranked.settle()
        with self.keeper.saving_if_stopped(place, self.parts):
            callbacks.after_epoch(trainer)
        if not (epoch % self.val_interval == 0 or epoch == self.epochs or place.stopped):
            return {}
        with self.keeper.saving_if_stopped(place, self.parts):
            measured = evaluate(
                trainer.evaluated, trainer.data.val, self.task, trainer.amp, inference_mode=self.inference_mode
            )
        metrics = {f"val/{name}": value for name, value in measured.items()}
        for name, value in metrics.items():
            trainer.log(name, value, place.step)
        callbacks.after_validation(trainer, metrics)
        trainer.clear_added()
        return metrics

    def _end(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Count an epoch, and save the state after it."""
        trainer, place = self.trainer, self.trainer.place
        place.stopped = bool(self.ranks.agree(place.stopped))
        place.epoch, place.batch = epoch, 0
        for schedule in trainer.schedules.values():
            schedule.after_epoch(metrics)
        improved = bool(metrics) and self.monitor.update(metrics, epoch)
        final = epoch == self.epochs or self.is_stopped
        self.keeper.save(place, self.parts, metrics if improved else None, final=final, evaluated=trainer.evaluated)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def steps_per_epoch(batches: Batches, accumulate: int) -> int:
    """Return the optimizer steps of an epoch.

    Args:
        batches: The training part.
        accumulate: Micro-batches in a step; the last step of an epoch may have fewer.

    Example:
        steps = loop.steps_per_epoch(batches.train, precision.accumulate)
    """
    return math.ceil(len(batches) / accumulate)
