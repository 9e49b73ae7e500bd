"""Checks of the state of another run that a run starts from, before anything is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacred.utils import get_by_dotted_path

from sacristan.ingredients.errors import ConfigError, LabError
from sacristan.observers.file.recorded_values import read_back

if TYPE_CHECKING:
    from torch import nn

    from sacristan.ingredients.datasets.fitted import Preparation

# Settings of the data that the shape of inputs and outputs follows from.
_OF_SHAPE = (
    "name",
    "path",
    "target",
    "columns",
    "categorical",
    "encoding",
    "missing",
    "dtype",
    "options",
    "task",
    "num_classes",
    "image_size",
    "transforms",
)


def check_start(path: Path, config: Mapping[str, Any], legacy_defaults: Mapping[str, Any]) -> None:
    """Reject a state that a run of this config cannot start from, as far as that shows without data and model.

    Raises CheckpointError if it does not fit, ConfigError if no epoch is left to train, DataError for another split.
    """
    from sacristan.ingredients.checkpoints.files import complete_config, load_checkpoint, split_of
    from sacristan.ingredients.checkpoints.training_state import check_whole

    state = load_checkpoint(path)
    complete_config(state, config, legacy_defaults)
    check_whole(state, {}, path)
    epochs = get_by_dotted_path(config, "training.epochs")
    if isinstance(epochs, int):
        check_left(path, state["epoch"], epochs)
    split = split_of(state, path)
    data = None if split is None else config.get(split.ingredient)
    if split is not None and isinstance(data, Mapping) and not data.get("new_split", True):
        split.check(data)
    _check_patience(state, path, config)
    _check_model(state, path, config)


def _check_patience(state: Mapping[str, Any], path: Path, config: Mapping[str, Any]) -> None:
    from sacristan.ingredients.checkpoints.folder import CheckpointFolder
    from sacristan.ingredients.checkpoints.training_state import keeps_monitor

    monitor, settings = state.get("monitor"), config.get("training")
    if not isinstance(monitor, Mapping) or not isinstance(settings, Mapping):
        return
    patience, waited = settings.get("patience"), monitor.get("waited")
    if not isinstance(patience, int) or not isinstance(waited, int) or waited < patience:
        return
    if not keeps_monitor(state, config):
        return
    keeps_best = get_by_dotted_path(config, "checkpoint.best")
    if keeps_best and CheckpointFolder(path.parent, 1).weights_of(monitor["epoch"]) is None:
        return  # the best model starts over, and patience with it
    check_waited(path, str(settings.get("monitor")), waited, patience)


def _check_model(state: Mapping[str, Any], path: Path, config: Mapping[str, Any]) -> None:
    """Reject weights that do not fit the config's model, unless they do not fit that of their own config either."""
    from sacristan.ingredients.checkpoints.files import check_weights, preparation_of
    from sacristan.ingredients.checkpoints.training_state import differ

    saved, preparation = read_back(state.get("config", {})), preparation_of(state, path)
    if preparation is None or not differ(saved, config, "model", "loss"):
        return
    if differ(saved, config, *(f"data.{name}" for name in _OF_SHAPE)):
        return
    try:
        check_weights(_model_of(saved, preparation), state, path, saved)
    except Exception:
        return  # the model is not determined by the config; the training itself will see
    check_weights(_model_of(config, preparation), state, path, config)


def _model_of(config: Mapping[str, Any], preparation: Preparation) -> nn.Module:
    """Return the model of a config, without memory for its weights if possible."""
    import torch

    from sacristan.ingredients.datasets.transforms import shape_after
    from sacristan.ingredients.losses import reading
    from sacristan.ingredients.models.building import build_model

    _, num_outputs = reading(config["loss"]["name"], preparation)
    settings = config["model"]
    transforms, shape = config["data"].get("transforms"), preparation.input_shape
    shape = shape_after(transforms, shape) if transforms else shape
    arguments = (settings["name"], settings["options"], "default", shape, num_outputs, config["seed"])
    dtype = getattr(torch, preparation.dtype)
    try:
        with torch.device("meta"):
            return build_model(*arguments, dtype, preparation)
    except LabError:
        return build_model(*arguments, dtype, preparation)


def check_left(start: Path, epochs_done: int, epochs: int) -> None:
    """Reject a start from the end of another training after which no epoch is left; `epochs` is the total."""
    if epochs_done >= epochs:
        raise ConfigError(
            f"training.epochs: got {epochs}, but {start} has {epochs_done} epochs behind it, so that nothing would be "
            f"trained; give more, such as epochs={epochs_done + epochs}"
        )


def check_waited(start: Path, monitor: str, waited: int, patience: int | None) -> None:
    """Reject a start that would stop at once, because the `waited` epochs use up the `patience`."""
    if patience is not None and waited >= patience:
        raise ConfigError(
            f"training.patience: got {patience}, but by {start} {monitor} has not improved for as long, so that "
            "nothing would be trained; give more, or patience=None"
        )
