"""Ingredient `checkpoint`: what of the training is kept on disk, and what is loaded from there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from configs import Map, to_plain
from ingredients.config.ingredient import Ingredient
from ingredients.errors import CheckpointError

if TYPE_CHECKING:
    from torch import nn

    from ingredients.checkpoints.checkpointer import Checkpointer
    from ingredients.checkpoints.record import TrainingRecord

__all__ = ["ingredient", "load_model", "make_checkpointer"]

_log = logging.getLogger(__name__)

ingredient = Ingredient("checkpoint")


@ingredient.config
def config() -> None:
    # keep the weights of the best epoch, by training.monitor, as checkpoints/best.pt
    best = True
    # keep the newest state of the whole training as checkpoints/last.pt
    last = True
    # epochs between savings of the newest state
    interval = 1
    # optimizer steps between savings of the newest state within an epoch; None for none
    interval_steps: int | None = None
    # newest states to keep, at least 2 to be safe from damage; the older ones stay as checkpoints/step-N.pt
    keep = 2
    # what to go on from: auto (the unfinished run of the same config, if there is one), or another run's checkpoint
    resume: str | None = None
    # checkpoint that the commands evaluate and predict load
    path: str | None = None


@ingredient.capture
def make_checkpointer(folder: Path, config: Map, _config: Map, run: TrainingRecord | None = None) -> Checkpointer:
    """Return what saves checkpoints of a training into `folder`/checkpoints, and resumes it from there.

    A second training of the same run has `checkpoints-2`, and so on.

    Args:
        folder: The run's folder.
        config: The run's config, which is kept in each checkpoint.
        run: The run, a `LabRun`. Without it nothing is resumed, and signals end the run where it is.

    Raises:
        CheckpointError: If a number is out of range.

    Example:
        with run_folder(_run) as folder:
            keeper = checkpoint.make_checkpointer(folder, _config, run=_run)
            opt = optimizer.make_optimizer(network)
            loop.fit(network, batches, criterion, opt, checkpointer=keeper, log=_run.log_scalar, **training)
            keeper.restore_best(network)
    """
    from ingredients.checkpoints.checkpointer import Checkpointer

    options = {name: value for name, value in _config.items() if name not in ("path", "resume")}
    start = None if _config.resume in (None, "auto") else Path(_config.resume)
    if run is None:
        return Checkpointer(Path(folder) / "checkpoints", to_plain(config), start=start, **options)
    number = run.count_training()
    name = "checkpoints" if number == 1 else f"checkpoints-{number}"
    return Checkpointer(
        Path(folder) / name,
        to_plain(config),
        start=start if number == 1 else None,
        resume=run.is_resumed,
        record=run,
        **options,
    )


@ingredient.capture
def load_model(model: nn.Module, config: Map, path: str | None) -> None:
    """Load the weights of the configured checkpoint into `model`.

    Warns if it was trained on other data, or on another split of them.

    Args:
        model: Built as it was when the checkpoint was saved.
        config: The run's whole config, to say what differs from the checkpoint's if it does not fit.

    Raises:
        CheckpointError: If it is missing, damaged, or of another model.
    """
    from ingredients.checkpoints.files import load_weights, other_data

    if path is None:
        raise CheckpointError("checkpoint.path: got None; write checkpoint.path=my_runs/ID/checkpoints/best.pt")
    state = load_weights(model, Path(path), to_plain(config))
    differing = other_data(state.get("config", {}), config)
    if differing:
        _log.warning(
            "%s was trained with %s, so the test part here may hold samples it was trained on; "
            "take the settings of its run, with its config.json",
            path,
            ", ".join(differing),
        )
