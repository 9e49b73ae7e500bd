"""The state of another run that a run starts from, looked at before anything is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sacred.utils import get_by_dotted_path

from ingredients.errors import ConfigError

__all__ = ["check_left", "check_start"]


def check_start(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a state that a run of this config cannot start from, as far as that shows without data and model.

    Args:
        path: The file of the state.
        config: The whole config.

    Raises:
        CheckpointError: If it is missing, damaged or no state.
        ConfigError: If it has as many epochs behind it as are wanted.
        DataError: If the config splits the data otherwise than it was trained with, and does not ask for that.
    """
    from ingredients.checkpoints.files import load_checkpoint, split_of

    state = load_checkpoint(path, check=False)
    epochs, done = get_by_dotted_path(config, "training.epochs"), state.get("epoch")
    if isinstance(epochs, int) and isinstance(done, int):
        check_left(path, done, epochs)
    data = config.get("data")
    split = split_of(state, path)
    if split is None or not isinstance(data, Mapping) or data.get("new_split", True):
        return
    split.check(data)


def check_left(start: Path, epochs_done: int, epochs: int) -> None:
    """Refuse to start from the end of another training, where no step would be taken.

    Raises:
        ConfigError: If it is so.
    """
    if epochs_done >= epochs:
        raise ConfigError(
            f"training.epochs: got {epochs}, but {start} has {epochs_done} epochs behind it, so that nothing would be "
            f"trained; give more, such as epochs={epochs_done + epochs}"
        )
