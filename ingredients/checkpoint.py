"""Ingredient `checkpoint`: what of the training is kept on disk, and what is loaded from there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from configs import Map, to_plain
from ingredients.errors import CheckpointError
from ingredients.ingredient import Ingredient

if TYPE_CHECKING:
    from torch import nn

    from ingredients.checkpoint_files import Checkpointer

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
    # newest states to keep; above 1 the older ones stay as checkpoints/epoch-N.pt
    keep = 1
    # checkpoint that the commands evaluate and predict load
    path: str | None = None


@ingredient.capture
def make_checkpointer(folder: Path, config: Map, _config: Map) -> Checkpointer:
    """Return what saves checkpoints into `folder`/checkpoints, each with the run's `config` inside.

    Raises:
        CheckpointError: If a number is out of range.
    """
    from ingredients.checkpoint_files import Checkpointer

    return Checkpointer(
        Path(folder) / "checkpoints",
        to_plain(config),
        best=_config.best,
        last=_config.last,
        interval=_config.interval,
        keep=_config.keep,
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
    from ingredients.checkpoint_files import load_weights, other_data

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
