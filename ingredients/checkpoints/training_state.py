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
from ingredients.models.compiled import load_plain_state_dict, plain_name, plain_state_dict

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
_OF_READING = ("num_workers", "pin_memory", "in_memory", "part")
# Settings that states of earlier versions lack, with the value that is like theirs.
_LATER: dict[str, Any] = {
    "columns": None,
    "categorical": None,
    "encoding": "one_hot",
    "missing": "refuse",
    "dtype": "float32",
    "new_split": False,
    "weights": None,
    "strict": True,
    "rename": [],
    "freeze": [],
    "unfreeze": [],
    "frozen_eval": "norm",
    "layer_decay": None,
    "collate": None,
    "collate_options": {},
    "sampler": None,
    "sampler_options": {},
    "epoch_samples": None,
    "shuffle_buffer": 0,
    "transforms": [],
    "matmul_precision": None,
    "gradient_checkpointing": [],
    "channels_last": False,
    "compile": None,
    "compile_options": {},
    "implementation": None,
    "inference_mode": False,
}


@dataclasses.dataclass
class Place:
    """Position of a training at the end of an optimizer step.

    Attributes:
        epoch: Epochs completed.
        batch: Batches done of the epoch after them.
        step: Optimizer steps done.
        losses: Losses since the last logged one: numbers, or scalars on the device; None for a step that was skipped.
        scalars: What a task gave beside its losses, by name, since the last logged one.
        stopped: Whether a callback or a task ended the training.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    losses: list = dataclasses.field(default_factory=list)
    scalars: dict[str, list] = dataclasses.field(default_factory=dict)
    stopped: bool = False


def snapshot(value: Any) -> Any:
    """Return a copy on the CPU that later steps do not reach; of tensors, lists, tuples and dicts at any depth.

    A number of numpy becomes one of Python, as loading a state refuses the others.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor):
        # Of one that is split over ranks the whole, which all of them ask for.
        return getattr(value, "full_tensor", value.detach)().detach().to("cpu", copy=True)
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
    names = {id(parameter): name for name, parameter in _parameters(parts).items()}
    for name, state in states.items():
        if name.partition(".")[0] == "optimizer" and state is not None:
            _name_groups(state["param_groups"], parts[name].param_groups, names)
    far = {**vars(place), "losses": snapshot(place.losses), "scalars": snapshot(place.scalars)}
    return {**states, **far, "streams": global_states()}


def _parameters(parts: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return what an optimizer may train, by name."""
    modules = {"": parts.get("model"), "loss.": parts.get("loss")}
    return {
        f"{prefix}{plain_name(name)}": parameter
        for prefix, module in modules.items()
        if module is not None
        for name, parameter in module.named_parameters()
    }


def _name_groups(saved: list[dict[str, Any]], groups: list[dict[str, Any]], names: Mapping[int, str]) -> None:
    """Note in saved groups of an optimizer which parameters they are of, where the groups do not say it."""
    for kept, group in zip(saved, groups, strict=True):
        found = [names.get(id(parameter)) for parameter in group["params"]]
        if "names" not in kept and "param_names" not in kept and None not in found:
            kept["names"] = found


def _add_groups(optimizer: Any, saved: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Add the groups that a training added to its optimizer in its course, to one that is as at the beginning."""
    later = saved["param_groups"][len(optimizer.param_groups) :]
    known = _parameters(parts)
    for group in later:
        names = group.get("names", group.get("param_names"))
        if not names or not known.keys() >= set(names):
            return  # loading says that the groups differ
        optimizer.add_param_group({**group, "params": [known[name] for name in names]})


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
    """Tell whether a state may lack it: earlier versions kept no statistics of a loss, and callbacks may be new."""
    return name == "callbacks" or (name == "loss" and not any(True for _ in part.parameters()))


def resume(parts: Mapping[str, Any], state: Mapping[str, Any], path: Path) -> Place:
    """Put all of `state` into `parts` and the global random streams, and return its place.

    Raises:
        CheckpointError: If it does not fit.
    """
    for name, part in parts.items():
        if part is not None and state.get(name) is not None:
            if name.partition(".")[0] == "optimizer":
                _add_groups(part, state[name], parts)
            _load(part, state[name], name, path)
        elif part is not None and name == "callbacks":
            _log.warning("%s holds no callbacks: those of this training start anew", path)
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
    place.stopped = False
    data = data_of(state)
    if differ(saved, config, data, "seed", "amp.accumulate") and place.batch:
        _log.warning("data, seed or amp.accumulate are others than in %s: epoch %d starts anew", path, place.epoch + 1)
        place.batch, place.losses, place.scalars = 0, [], {}
    if not differ(saved, config, "seed"):
        set_global_states(state["streams"])
    kept = {
        "amp": not differ(saved, config, "amp"),
        "monitor": keeps_monitor(state, config),
        "loss": not differ(saved, config, "loss") and state.get("loss") is not None,
    }
    for name, part in parts.items():
        kind, dot, which = name.partition(".")
        if kind == "optimizer" and part is not None:
            _branch_rates(name, f"scheduler{dot}{which}", parts, state, place, path, config)
        elif kind == "callbacks":
            _branch_callbacks(part, state.get(name), path)
        elif kind not in ("model", "scheduler") and part is not None and kept.get(name, True):
            _load(part, state[name], name, path)
    return place


def _branch_callbacks(callbacks: Any, state: Any, path: Path) -> None:
    """Put back the callbacks, if they are those of the state; others start anew."""
    try:
        callbacks.load_state_dict(state or {})
    except CheckpointError as error:
        _log.warning("%s: %s; those of this training start anew", path, error)


def data_of(state: Mapping[str, Any]) -> str:
    """Return the ingredient, and entry of the config, of the data that a state was trained on."""
    split = state.get("split")
    return split.get("ingredient", "data") if isinstance(split, Mapping) else "data"


def keeps_monitor(state: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Tell whether the best value of a training keeps its meaning under another config; patience goes on with it."""
    saved = state.get("config", {})
    return not differ(saved, config, "training.monitor", "training.mode", data_of(state), "loss")


def _branch_rates(
    name: str,
    of_schedule: str,
    parts: Mapping[str, Any],
    state: Mapping[str, Any],
    place: Place,
    path: Path,
    config: Mapping[str, Any],
) -> None:
    """Put back an optimizer and its schedule; where the config of either changed, its rates at the place count."""
    saved = state.get("config", {})
    optimizer, schedule = parts[name], parts.get(of_schedule)
    is_changed = differ(saved, config, "optimizer", "model", "scheduler", data_of(state), "amp.accumulate")
    if schedule is None or schedule.has_length:
        is_changed = is_changed or differ(saved, config, "training.epochs")
    if differ(saved, config, "optimizer.name"):
        _log.warning("optimizer.name is another than in %s: the optimizer starts without momenta", path)
    elif is_changed:
        _load(optimizer, _regrouped(state[name], optimizer.state_dict()["param_groups"]), name, path)
    else:
        _add_groups(optimizer, state[name], parts)
        _load(optimizer, state[name], name, path)
    if schedule is None:
        return
    if is_changed:
        with warnings.catch_warnings():
            # The optimizer has stepped; it just was another object then.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            schedule.advance(place.step, place.epoch)
    else:
        _load(schedule, state[of_schedule], of_schedule, path)


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
    # States of earlier versions have neither scalars nor an end.
    kept = {"losses": state["losses"], **state.get("scalars", {})}
    found = {
        name: [value.to(device) if isinstance(value, Tensor) else value for value in values]
        for name, values in kept.items()
    }
    losses = found.pop("losses")
    return Place(state["epoch"], state["batch"], state["step"], losses, found, state.get("stopped", False))


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
