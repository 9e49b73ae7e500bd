"""The training loop: plain torch, top to bottom. Experiments call `fit`, `evaluate` and `predict`.

Shapes: B samples in a batch, N samples in a part of the data, K classes or labels, D target values.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.running.starting_state import check_left, check_waited
from experiments.training.checks import check_parts
from experiments.training.divergence import DivergenceCheck
from experiments.training.metrics import RunningMetrics
from experiments.training.modes import evaluating
from experiments.training.monitor import Monitor
from experiments.training.progress import Progress
from ingredients.checkpoints.checkpointer import Checkpointer
from ingredients.datasets.batches import Batches, Data
from ingredients.losses.building import Loss
from ingredients.precision.mixed_precision import MixedPrecision
from ingredients.scheduler import Schedule
from ingredients.training import check_lengths

__all__ = ["FitResult", "evaluate", "fit", "predict", "steps_per_epoch"]

LogScalar = Callable[[str, float, int], None]


@dataclasses.dataclass
class FitResult:
    """How a training went.

    Attributes:
        epochs: Epochs completed.
        steps: Optimizer steps, skipped ones included.
        best_epoch: Epoch of the best monitored value; 0 if there was none.
        best: That value; NaN if there was none.
        stopped_early: Whether patience ended the training.
    """

    epochs: int = 0
    steps: int = 0
    best_epoch: int = 0
    best: float = math.nan
    stopped_early: bool = False


def fit(
    model: nn.Module,
    data: Data,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    *,
    log: LogScalar,
    epochs: int,
    scheduler: Schedule | None = None,
    amp: MixedPrecision | None = None,
    checkpointer: Checkpointer | None = None,
    val_interval: int = 1,
    log_interval: int = 50,
    monitor: str = "val/loss",
    mode: str = "auto",
    patience: int | None = None,
    min_delta: float = 0.0,
    on_nan: str = "stop",
) -> FitResult:
    """Train `model` on `data.train`, validating on `data.val` every `val_interval` epochs.

    Logs every `log_interval` optimizer steps and at the last one: `train/loss` (mean since the last value),
    `train/lr`, `train/grad_norm` (before clipping), with float16 `amp/scale` and `amp/skipped`; after each validation
    the metrics of `evaluate` as `val/...`. The step of each value is the number of optimizer steps done.

    Args:
        model: On the device of the data; takes inputs (B, *input_shape), returns outputs (B, K) or (B, D).
        data: Its `train` yields inputs and targets: classes (B,), labels (B, K) or values (B, D). `val` may be empty.
        loss: Takes outputs and targets of a batch.
        optimizer: Over the model's parameters; one that recomputes its loss, such as LBFGS, gets a closure.
        log: Called as `log(name, value, step)`, such as `_run.log_scalar`.
        epochs: Passes over the training data, those of earlier sessions included.
        scheduler: The learning-rate schedule; constant without one.
        amp: Mixed precision, clipping and accumulation; none of them without one.
        checkpointer: Saves the best and newest states, and finds the one to resume from; without one, none is saved.
        val_interval: Epochs between validations; the last epoch is validated in any case.
        log_interval: Optimizer steps between logged values of the training.
        monitor: Metric that tells the best epoch, such as `val/loss` or `val/accuracy`.
        mode: Which way is better: `min`, `max`, or `auto`: max for accuracy and r2, else min.
        patience: Validations without improvement after which training stops; None never stops early.
        min_delta: Smallest change of the metric that patience counts as an improvement.
        on_nan: What to do once the loss or a weight is NaN or infinite: `stop` or `ignore`.

    Returns:
        How many epochs and steps were done, and the best epoch. The model keeps the weights of the last epoch;
        `Checkpointer.restore_best` loads the best ones.

    Raises:
        LabError: If the parts do not fit together; before the first step.
        TrainingError: If the loss or a weight is NaN or infinite, unless `on_nan` is "ignore". No state is saved then.
        CheckpointError: If a state cannot be read or written.
        Terminated: If a signal asked for the end; the state after the last whole step is saved.

    Example:
        opt = optimizer.make_optimizer(network, criterion)
        result = loop.fit(network, batches, criterion, opt, log=_run.log_scalar, **training)
        print(result.best_epoch, result.best)
    """
    amp = amp or MixedPrecision(next(model.parameters()).device)
    best = Monitor(monitor, mode, patience, min_delta)
    check_lengths(epochs, val_interval, log_interval)
    check_parts(model, data, loss, optimizer, best, scheduler)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "amp": amp, "monitor": best}
    if loss.is_changed_by_training:
        parts["loss"] = loss.module
    keeper = checkpointer or Checkpointer(Path(), {}, best=False, last=False)
    check = DivergenceCheck(model, loss, keeper, amp.accumulate, on_nan)
    place = keeper.begin(parts, preparation=data.preparation, check=check.state)
    if keeper.branched_from is not None:
        check_left(keeper.branched_from, place.epoch, epochs)
        check_waited(keeper.branched_from, best.name, best.waited, best.patience)
    steps_done = math.ceil(place.batch / amp.accumulate)
    num_steps = place.step - steps_done + (epochs - place.epoch) * steps_per_epoch(data.train, amp.accumulate)
    closing = isinstance(optimizer, torch.optim.LBFGS)
    # A number costs nothing on the CPU; on a GPU it would have to be waited for.
    on_cpu = amp.device.type == "cpu"
    is_sum = loss.averaging == "sum"
    losses = place.losses

    with Progress(epochs, num_steps, place.step) as progress, keeper.session():
        while place.epoch < epochs and not best.exhausted:
            epoch = place.epoch + 1
            model.train()
            loss.module.train()
            for group in keeper.until_stopped(grouped(data.train.epoch(epoch, place.batch), amp.accumulate)):
                place.batch += len(group)
                num_samples = sum(len(targets) for _, targets in group) if is_sum else 0
                if closing:
                    batch_loss, stepped = closure_step(model, group, loss, optimizer, amp)
                else:
                    batch_loss = backward(model, group, loss, amp)
                    del group  # The next batch takes its memory, while it is still in the cache.
                    stepped = amp.step(optimizer)
                if is_sum:
                    batch_loss = loss.mean(batch_loss.detach(), num_samples)
                losses.append(batch_loss.item() if on_cpu else batch_loss.detach())
                place.step = step = place.step + 1
                if step % log_interval == 0 or step == num_steps:
                    mean = log_training(log, step, losses, optimizer, amp)
                    progress.step(step, mean)
                    check.losses(place, mean)
                    losses.clear()
                amp.update()
                optimizer.zero_grad()
                if stepped and scheduler is not None:
                    scheduler.after_step()
                if keeper.is_due(step):
                    keeper.save(place, parts)
            if keeper.is_stopping:
                keeper.save(place, parts)
            check.losses(place)

            metrics = {}
            if epoch % val_interval == 0 or epoch == epochs:
                with keeper.saving_if_stopped(place, parts):
                    measured = evaluate(model, data.val, loss, amp)
                metrics = {f"val/{name}": value for name, value in measured.items()}
                for name, value in metrics.items():
                    log(name, value, place.step)
            place.epoch, place.batch = epoch, 0
            if scheduler is not None:
                scheduler.after_epoch(metrics)
            improved = bool(metrics) and best.update(metrics, epoch)
            final = epoch == epochs or best.exhausted
            keeper.save(place, parts, metrics if improved else None, final=final)
            progress.epoch(epoch, metrics)
        check.weights(place)
    return FitResult(place.epoch, place.step, best.epoch, best.value, best.exhausted)


def closure_step(
    model: nn.Module, group: list, loss: Loss, optimizer: torch.optim.Optimizer, amp: MixedPrecision
) -> tuple[Tensor, bool]:
    """Let an optimizer that recomputes its loss take one step; return the first loss, and that the step took place."""
    losses = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses.append(backward(model, group, loss, amp))
        return losses[-1]

    stepped = amp.step(optimizer, closure)
    return losses[0], stepped


def backward(model: nn.Module, group: list[tuple[Tensor, Tensor]], loss: Loss, amp: MixedPrecision) -> Tensor:
    """Add the gradients of one effective batch, given as micro-batches, and return its loss.

    The loss still holds its graph: letting go of that before the optimizer steps costs 4 us a step (measured).

    Each micro-batch counts by its share of the whole, so that the gradients are those of one big batch, also when the
    last one is smaller, classes are weighted, or the loss is a sum. (BatchNorm still sees one micro-batch at a time.)
    """
    criterion = loss.module
    if len(group) == 1:
        inputs, targets = group[0]
        with amp.context:
            batch_loss = criterion(model(inputs), targets)
        amp.backward(batch_loss)
        return batch_loss
    weights = [loss.normalizer(targets) for _, targets in group]
    total, whole = sum(weights), torch.zeros((), device=group[0][0].device)
    is_sum = loss.averaging == "sum"
    for (inputs, targets), weight in zip(group, weights, strict=True):
        if weight == 0 and total > 0:
            continue  # All its targets are ignored, and the mean over nothing is NaN.
        with amp.autocast():
            batch_loss = criterion(model(inputs), targets) * (1.0 if is_sum else weight / total)
        amp.backward(batch_loss)
        whole = whole + batch_loss.detach()
    return whole


def log_training(
    log: LogScalar, step: int, losses: list[Tensor | float], optimizer: torch.optim.Optimizer, amp: MixedPrecision
) -> float:
    """Log the state of the training at `step`, and return the mean of `losses`.

    This is the one place in the loop that waits for the device, unless float16 looks for overflows, or micro-batches
    are weighed by their classes.
    """
    norm = amp.grad_norm(optimizer)
    if amp.device.type == "cpu":
        mean, norm = sum(map(float, losses)) / len(losses), float(norm)
    else:
        # Of a state that was saved on another device, some may be there, and some may be numbers.
        on_device = [torch.as_tensor(value, dtype=torch.float32, device=amp.device) for value in (*losses, norm)]
        mean, norm = torch.stack([torch.stack(on_device[:-1]).mean(), on_device[-1]]).tolist()
    log("train/loss", mean, step)
    log("train/grad_norm", norm, step)
    log("train/lr", optimizer.param_groups[0]["lr"], step)
    if amp.dtype == "float16":
        log("amp/scale", amp.scale(), step)
        log("amp/skipped", amp.num_skipped, step)
    return mean


@torch.no_grad()
def evaluate(model: nn.Module, batches: Batches, loss: Loss, amp: MixedPrecision | None = None) -> dict[str, float]:
    """Return the loss and the metrics of a model over a part of the data; empty if the part is.

    The model is in evaluation mode meanwhile; afterwards every module of it is in the mode it was in.

    Args:
        model: On the device of the data.
        batches: Such as `data.val` or `data.test`.
        loss: The loss that the model was trained with.
        amp: The precision to compute in; float32 without one.

    Returns:
        `loss` and `accuracy`, from 0 to 1; of regression `loss`, `r2`, `mae` and `rmse`, the last two in the targets'
        own unit. Each is over all samples together, whatever the size of the batches.

    Example:
        metrics = loop.evaluate(network, batches.test, criterion)
        print(metrics["accuracy"])
    """
    amp = amp or MixedPrecision(next(model.parameters()).device)
    metrics = RunningMetrics(loss)
    with evaluating(model, loss.module):
        for outputs, targets in _forward(model, batches, amp):
            with amp.autocast():
                batch_loss = loss(outputs, targets)
            metrics.update(outputs, targets, batch_loss)
    return metrics.compute()


@torch.no_grad()
def predict(model: nn.Module, batches: Batches, loss: Loss, amp: MixedPrecision | None = None) -> dict[str, Tensor]:
    """Return what the model makes of `batches`, in their order, on the CPU; their targets may be missing.

    The model is in evaluation mode meanwhile; afterwards every module of it is in the mode it was in.

    Args:
        model: On the device of the data.
        batches: Such as `data.test`.
        loss: The loss that the model was trained with, which says how its outputs are read.
        amp: The precision to compute in; float32 without one.

    Returns:
        `predictions`: classes (N,), labels (N, K) as 0 and 1, or values (N, D) in the targets' own unit; `targets`
        likewise; `probabilities` (N, K), unless the loss is one of values. Empty if the part is.

    Example:
        found = loop.predict(network, batches.test, criterion)
        wrong = found["predictions"] != found["targets"]
    """
    amp = amp or MixedPrecision(next(model.parameters()).device)
    found: dict[str, list[Tensor]] = {"predictions": [], "targets": [], "probabilities": []}
    with evaluating(model):
        for outputs, targets in _forward(model, batches, amp):
            found["predictions"].append(loss.predict(outputs).cpu())
            found["targets"].append(loss.own_unit(targets).cpu())
            probabilities = loss.probabilities(outputs)
            if probabilities is not None:
                found["probabilities"].append(probabilities.cpu())
    return {name: torch.cat(parts) for name, parts in found.items() if parts}


def _forward(model: nn.Module, batches: Batches, amp: MixedPrecision) -> Iterator[tuple[Tensor, Tensor]]:
    for inputs, targets in batches.epoch():
        with amp.autocast():
            outputs = model(inputs)
        yield outputs, targets


def grouped(batches: Iterable, size: int) -> Iterator[list]:
    """Return an iterator over lists of `size` batches, the last one possibly shorter; it holds on to none of them."""
    if size == 1:
        return map(_alone, batches)
    iterator = iter(batches)
    return iter(lambda: list(itertools.islice(iterator, size)), [])


def _alone(batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [batch]


def steps_per_epoch(batches: Batches, accumulate: int) -> int:
    """Return the optimizer steps of an epoch.

    Args:
        batches: The training part.
        accumulate: Micro-batches in a step; the last step of an epoch may have fewer.

    Example:
        steps = loop.steps_per_epoch(batches.train, precision.accumulate)
    """
    return math.ceil(len(batches) / accumulate)
