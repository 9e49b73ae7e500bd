"""A supervised training, composed of ingredients: `exp.py`, and ready experiments that differ in data and model alone.

    ex = Experiment("mine", ingredients=supervised.ingredients())
    supervised.compose(ex)

`main` is the text to read first: each of its lines calls one ingredient. `train` is what all experiments share that
train one network, whatever their task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sacristan.configs import Map
from sacristan.experiments.experiment import Experiment
from sacristan.experiments.running import LabRun
from sacristan.ingredients import (
    Ingredient,
    amp,
    checkpoint,
    data,
    device,
    distributed,
    exporting,
    loss,
    metrics,
    model,
    optimizer,
    probe,
    scheduler,
    sweep,
    training,
)
from sacristan.observers import run_folder

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sacristan.experiments.training import Task
    from sacristan.experiments.training.callbacks import Callback
    from sacristan.ingredients import Data, Loss, MixedPrecision

__all__ = ["compose", "ingredients", "train"]


def ingredients() -> list[Ingredient]:
    """Return the ingredients of a supervised training."""
    parts = (device, distributed, data, loss, metrics, model, optimizer, scheduler, amp, training, checkpoint)
    return [part.ingredient for part in (*parts, exporting, probe, sweep)]


def compose(ex: Experiment) -> None:
    """Add the settings at the root and the commands main, evaluate, predict and export to an experiment."""
    ex.alias(lr="optimizer.lr", epochs="training.epochs", resume="checkpoint.resume")
    ex.config(_config)
    ex.command(evaluate)
    ex.command(predict, needs=["export"])
    ex.command(export, needs=["export"])
    ex.main(main)


def _config(optimizer: Any, training: Any, checkpoint: Any) -> None:
    # learning rate; the same setting as optimizer.lr
    lr = optimizer["lr"]
    # passes over the training data; the same setting as training.epochs
    epochs = training["epochs"]
    # auto resumes the unfinished run with this config, if there is one; the same setting as checkpoint.resume
    resume = checkpoint["resume"]
    # all random streams (split, shuffle, augmentation, weights, dropout) derive from it
    seed = 0


def _build(
    batches: Data, where: torch.device, seed: int, config: Map, *, pretrained: bool = False
) -> tuple[Loss, nn.Module, MixedPrecision]:
    from sacristan.experiments.training import results

    criterion = metrics.add_metrics(loss.make_loss(batches, device=where), batches, device=where)
    network = model.model_for(batches, criterion.num_outputs, seed, pretrained=pretrained).to(where)
    results.announce(config, network, batches, where)
    return criterion, network, amp.make_amp(where)


def train(
    run: LabRun,
    config: Map,
    network: nn.Module,
    batches: Data,
    task: Task | Loss,
    precision: MixedPrecision,
    optimizers: dict[str, torch.optim.Optimizer] | None = None,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Train a network as the config says, in the run's folder, and leave it with its best weights."""
    from sacristan.experiments.training import inspection, loop, results
    from sacristan.ingredients import Loss

    opt: Any = optimizers
    schedule = None
    if opt is None:
        opt = optimizer.make_optimizer(network, task if isinstance(task, Loss) else None)
        steps = loop.steps_per_epoch(batches.train, precision.accumulate)
        schedule = scheduler.make_scheduler(opt, config.training.epochs, steps)
    with run_folder(run) as folder:
        keeper = checkpoint.make_checkpointer(folder, config, run=run)
        fitted = loop.fit(
            network,
            batches,
            task,
            opt,
            scheduler=schedule,
            amp=precision,
            checkpointer=keeper,
            callbacks=[*callbacks, *inspection.make_callbacks(run, config)],
            log=run.log_scalar,
            **config.training,
        )
        keeper.restore_best(network)
    results.report_speed(run, fitted.speed)


def evaluate(_config: Map, _run: LabRun, seed: int) -> float | None:
    """Measure a checkpoint (checkpoint.path=...) on the test part of its training, or on other data."""
    from sacristan.experiments.training import loop, results

    where = device.make_device(seed)
    batches = data.make_test_data(seed, where, checkpoint.load_preparation())
    criterion, network, precision = _build(batches, where, seed, _config)
    checkpoint.load_model(network, _config, loss=criterion)
    with results.measured_speed(_run, batches.test):
        measured = loop.evaluate(network, batches.test, criterion, precision)
    return results.report_test(_run, measured, criterion)


def predict(_config: Map, _run: LabRun, seed: int) -> int:
    """Write the predictions of a checkpoint (checkpoint.path=...) as a table; the data need no targets."""
    from sacristan.experiments.training import loop, results

    where = device.make_device(seed)
    batches = data.make_test_data(seed, where, checkpoint.load_preparation(), needs_targets=False)
    criterion, network, precision = _build(batches, where, seed, _config)
    checkpoint.load_model(network, _config)
    predictions = loop.predict(network, batches.test, criterion, precision)
    return results.record_predictions(_run, predictions, batches, _config.export.predictions)


def export(_config: Map, _run: LabRun, seed: int) -> float:
    """Write a checkpoint (checkpoint.path=...) as a file for other programs, compared with the model on its data."""
    where = device.make_device(seed)
    batches = data.make_test_data(seed, where, checkpoint.load_preparation(), needs_targets=False)
    criterion, network, _ = _build(batches, where, seed, _config)
    origin = checkpoint.load_model(network, _config)
    return exporting.export_model(network, batches, criterion, origin, _config, _run)


def main(_config: Map, _run: LabRun, seed: int) -> float | None:
    """Train, and return the metric of the best epoch on the test part."""
    from sacristan.experiments.training import loop, results

    where = device.make_device(seed)
    batches = data.make_data(seed, where, start=checkpoint.load_split(_run))
    criterion, network, precision = _build(batches, where, seed, _config, pretrained=True)
    results.record_graph(_run, network, batches)
    train(_run, _config, network, batches, criterion, precision)
    measured, predictions = loop.evaluate_and_predict(network, batches.test, criterion, precision)
    results.report_cases(_run, predictions, batches, criterion)
    return results.report_test(_run, measured, criterion)
