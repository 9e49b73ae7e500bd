"""The state of another run, from which `sacristan fork` starts a script with other words."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sacristan.ingredients.checkpoints.checkpointer import Checkpointer
from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.ingredients.checkpoints.training_state import Place, check_whole, of_rank, resume
from sacristan.ingredients.ranks.group import Ranks
from sacristan.observers.record.identity import FORK_VARIABLE

__all__ = ["start_from", "state_to_start_from"]


def state_to_start_from(keeper: Checkpointer) -> Path | None:
    """Return the run's own copy of the state that it starts from, as `SACRISTAN_FORK` names it; None for none."""
    named = os.environ.pop(FORK_VARIABLE, "")
    if named:
        keeper.files.keep_start(Path(named), 0)
    return next((keeper.files.path / "start").glob("*.pt"), None)


def start_from(path: Path, parts: Mapping[str, Any], ranks: Ranks) -> Place:
    """Load a state of another run into the parts of a loop, and return its place.

    Optimizers keep their momenta, and have the settings that the script has built them with, such as its learning rate;
    schedules are advanced from their beginning to the place.

    Raises:
        CheckpointError: If it does not fit.
    """
    state = of_rank(ranks.from_first(lambda: load_checkpoint(path)), ranks)
    check_whole(state, parts, path)
    built = {name: [_settings(part, group) for group in part.param_groups] for name, part in _optimizers(parts).items()}
    schedules = {name: part for name, part in parts.items() if _is_schedule(part)}
    place = resume({name: part for name, part in parts.items() if name not in schedules}, state, path)
    for name, optimizer in _optimizers(parts).items():
        for group, settings in zip(optimizer.param_groups, built[name], strict=False):
            group.update(settings)
    with warnings.catch_warnings():
        # The optimizer has stepped, in another process.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        for name, schedule in schedules.items():
            for _ in range(state[name]["last_epoch"]):
                schedule.step()
    return place


def _optimizers(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if hasattr(part, "param_groups")}


def _settings(optimizer: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a group that the script sets, unlike counters such as those of schedule-free optimizers."""
    names = {*inspect.signature(type(optimizer)).parameters, "initial_lr"} - {"params"}
    return {name: value for name, value in group.items() if name in names}


def _is_schedule(part: Any) -> bool:
    """Tell whether a part is a schedule that counts steps alone, unlike one that follows a metric."""
    counts = hasattr(part, "last_epoch") and hasattr(part, "step")
    return counts and "metrics" not in inspect.signature(part.step).parameters
