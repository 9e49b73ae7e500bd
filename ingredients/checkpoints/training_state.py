"""The state of a whole training as tensors and plain values: copied out of its parts, and put back into them.

`resume` puts back all of it, bit for bit. `branch` puts back what a changed config leaves its meaning.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from ingredients.checkpoints.files import check_weights
from ingredients.config.seed import global_states, set_global_states
from ingredients.errors import CheckpointError
from ingredients.models.compiled import load_plain_state_dict, plain_state_dict

__all__ = [
    "Place",
    "branch",
    "capture",
    "check_whole",
    "differ",
    "keeps_monitor",
    "resume",
    "snapshot",
    "state_of",
]

_log = logging.getLogger(__name__)

# Settings of the data that change how they are read, and nothing of what is read.
_OF_READING = ("num_workers", "pin_memory", "in_memory")
# Settings that states of earlier versions lack, with the value that is like theirs.
_LATER: dict[str, Any] = {"columns": None, "categorical": None, "dtype": "float32", "new_split": False}
_LATER |= {"collate": None, "collate_options": {}, "sampler": None, "weights": None, "epoch_samples": None}


@dataclasses.dataclass
class Place:
    """How far a training has come, at the end of an optimizer step.

    Attributes:
        epoch: Epochs completed.
        batch: Batches done of the epoch after them.
        step: Optimizer steps done.
        losses: Losses since the last logged one: numbers, or scalars on the device.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    losses: list = dataclasses.field(default_factory=list)


def snapshot(value: Any) -> Any:
    """Return a copy on the CPU that later steps do not reach; of tensors, lists, tuples and dicts at any depth.

    A number of numpy becomes one of Python, as loading a state refuses the others.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = type(value)()  # such as a Counter, which schedulers count by
        copied.update({key: snapshot(item) for key, item in value.items()})
        return copied
    return type(value)(map(snapshot, value)) if type(value) in (list, tuple) else value


def state_of(part: Any) -> dict[str, Any]:
    """Return a copy of the state of a part; that of a compiled module is as without `torch.compile`."""
    return snapshot(plain_state_dict(part) if isinstance(part, nn.Module) else part.state_dict())


def capture(place: Place, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of `parts` at `place`, with that of the global random streams.

    Args:
        place: The training's place.
        parts: By name, what has a `state_dict`; None stands for what there is none of.
    """
    states = {name: None if part is None else state_of(part) for name, part in parts.items()}
    return {**states, **vars(place), "losses": snapshot(place.losses), "streams": global_states()}


def check_whole(state: Mapping[str, Any], parts: Mapping[str, Any], path: Path) -> None:
    """Check that a state is that of a whole training with such parts.

    Raises:
        CheckpointError: If something is missing.
    """
    needed = {"epoch", "batch", "step", "losses", "streams"}
    needed.update(name for name, part in parts.items() if part is not None and not _may_be_missing(name, part))
    missing = sorted(name for name in needed if state.get(name) is None)
    if missing:
        raise CheckpointError(
            f"{path}: holds no {', '.join(missing)}, so it is no state of this training; expected one saved as "
            "checkpoints/last.pt (best.pt holds weights alone)"
        )


def _may_be_missing(name: str, part: Any) -> bool:
    """Tell whether states of earlier versions lack it: statistics of a loss were not kept."""
    return name == "loss" and not any(True for _ in part.parameters())


def resume(parts: Mapping[str, Any], state: Mapping[str, Any], path: Path) -> Place:
    """Put all of `state` into `parts` and the global random streams, and return its place.

    Raises:
        CheckpointError: If it does not fit.
    """
    for name, part in parts.items():
        if part is not None and state.get(name) is not None:
            _load(part, state[name], name, path)
    set_global_states(state["streams"])
    return _place_of(state, parts)


def branch(parts: Mapping[str, Any], state: Mapping[str, Any], path: Path, config: Mapping[str, Any]) -> Place:
    """Put into `parts` what of `state` keeps its meaning under `config`, and return the place to resume from.

    The weights always do. Where the config of a part changed, the new one counts: an optimizer keeps its momenta and
    takes the new learning rate, a schedule is followed anew up to the place, a scale of the loss and the best value
    start anew. Other data, or another seed, mean an order of their own, so that an epoch in the middle starts anew.

    Raises:
        CheckpointError: If the weights do not fit.
    """
    saved = state.get("config", {})
    model = parts["model"]
    check_weights(model, state, path, config)
    load_plain_state_dict(model, state["model"])
    place = _place_of(state, parts)
    if differ(saved, config, "data", "seed", "amp.accumulate") and place.batch:
        _log.warning("data, seed or amp.accumulate are others than in %s: epoch %d starts anew", path, place.epoch + 1)
        place.batch, place.losses = 0, []
    if not differ(saved, config, "seed"):
        set_global_states(state["streams"])
    kept = {
        "amp": not differ(saved, config, "amp"),
        "monitor": keeps_monitor(saved, config),
        "loss": not differ(saved, config, "loss") and state.get("loss") is not None,
    }
    for name, part in parts.items():
        if name not in ("model", "optimizer", "scheduler") and part is not None and kept.get(name, True):
            _load(part, state[name], name, path)
    if parts.get("optimizer") is not None:
        _branch_rates(parts["optimizer"], parts.get("scheduler"), state, place, path, config)
    return place


def keeps_monitor(saved: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Tell whether the best value of a training keeps its meaning under another config; patience goes on with it."""
    return not differ(saved, config, "training.monitor", "training.mode", "data", "loss")


def _branch_rates(
    optimizer: Any, schedule: Any, state: Mapping[str, Any], place: Place, path: Path, config: Mapping[str, Any]
) -> None:
    """Put back optimizer and schedule; where the config of either changed, its rates at the place count."""
    saved = state.get("config", {})
    is_changed = differ(saved, config, "optimizer", "model", "scheduler", "data", "amp.accumulate")
    if schedule is None or schedule.has_length:
        is_changed = is_changed or differ(saved, config, "training.epochs")
    if differ(saved, config, "optimizer.name"):
        _log.warning("optimizer.name is another than in %s: the optimizer starts without momenta", path)
    elif is_changed:
        _load(optimizer, _regrouped(state["optimizer"], optimizer.state_dict()["param_groups"]), "optimizer", path)
    else:
        _load(optimizer, state["optimizer"], "optimizer", path)
    if schedule is None:
        return
    if is_changed:
        with warnings.catch_warnings():
            # The optimizer has stepped; it just was another object then.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            schedule.advance(place.step, place.epoch)
    else:
        _load(schedule, state["scheduler"], "scheduler", path)


def _regrouped(state: Mapping[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of an optimizer for other groups; what it has of a parameter stays with that, by its name."""
    numbers, names = _by_name(state["param_groups"]), _by_name(groups)
    kept = {names[name]: state["state"][n] for name, n in numbers.items() if name in names and n in state["state"]}
    return {"state": kept, "param_groups": groups}


def _by_name(groups: list[dict[str, Any]]) -> dict[str, int]:
    """Return the numbers of parameters by their names; one without a name is named by its turn among those."""
    found: dict[str, int] = {}
    unnamed = itertools.count()
    for group in groups:
        names = group.get("names", group.get("param_names")) or ()
        for place, number in enumerate(group["params"]):
            found[names[place] if place < len(names) else f"(unnamed {next(unnamed)})"] = number
    return found


def _place_of(state: Mapping[str, Any], parts: Mapping[str, Any]) -> Place:
    device = next(parts["model"].parameters()).device
    losses = [value.to(device) if isinstance(value, Tensor) else value for value in state["losses"]]
    return Place(state["epoch"], state["batch"], state["step"], losses)


def _load(part: Any, state: Any, name: str, path: Path) -> None:
    try:
        if isinstance(part, nn.Module):
            load_plain_state_dict(part, state)
        else:
            part.load_state_dict(_with_names(state, part))
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError, IndexError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointError(f"{path}: its {name} does not fit this training ({reason})") from error


def _with_names(state: Any, part: Any) -> Any:
    """Return the state of an optimizer with names where the lab keeps them; earlier versions used torch's place."""
    groups = getattr(part, "param_groups", None)
    if not groups or "names" not in groups[0] or not isinstance(state, Mapping):
        return state
    renamed = [
        {"names" if key == "param_names" else key: value for key, value in group.items()}
        for group in state["param_groups"]
    ]
    return {**state, "param_groups": renamed}


def differ(saved: Mapping[str, Any], mine: Mapping[str, Any], *names: str) -> bool:
    """Tell whether configs differ in one of the entries, given by dotted names; how data are read does not count."""
    return any(_plain(_entry(saved, name)) != _plain(_entry(mine, name)) for name in names)


def _entry(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        value = {
            name: item
            for name, item in value.items()
            if name not in _OF_READING and (name not in _LATER or item != _LATER[name])
        }
    return json.dumps(value, sort_keys=True, default=str)
