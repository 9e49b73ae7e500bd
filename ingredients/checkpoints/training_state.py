"""The state of a whole training as tensors and plain values: copied out of its parts, and loaded into them.

`resume` loads all of it, bit for bit. `branch` loads the parts that keep their meaning under a changed config.

Weights and momenta are the same on all ranks. Random streams, and the losses since the last logged one, are not; a
state has them as `ranks`, one entry for each. Its top-level streams are those of rank 0, its top-level losses the means
over ranks, so a single process reads it like any other state.

If an optimizer evaluates other weights than it trains, those of `model` and `loss` are the ones to evaluate, as in each
checkpoint; `trained` holds the others by name.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sacristan.configs.map import value_at
from sacristan.ingredients.checkpoints import optimizer_state
from sacristan.ingredients.checkpoints.files import check_weights
from sacristan.ingredients.config.seed import global_states, set_global_states
from sacristan.ingredients.errors import CheckpointError
from sacristan.ingredients.models.modules import (
    evaluation_weights,
    load_plain_state_dict,
    plain_name,
    plain_state_dict,
    switching,
)
from sacristan.ingredients.ranks.group import Ranks
from sacristan.observers.file.sacred_form import plain

_log = logging.getLogger(__name__)

# Settings that change how data are read, but not the data.
_OF_READING = ("num_workers", "pin_memory", "in_memory", "part")


@dataclasses.dataclass
class Place:
    """The progress of a training after an optimizer step.

    Attributes:
        epoch: Epochs completed.
        batch: Batches done of the epoch after them.
        step: Optimizer steps done.
        losses: Losses since the last logged one: numbers, or scalars on the device; None for a skipped step.
        scalars: Other scalars of the task by name, since the last logged ones.
        stopped: Whether a callback or a task ended the training.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    losses: list = dataclasses.field(default_factory=list)
    scalars: dict[str, list] = dataclasses.field(default_factory=dict)
    stopped: bool = False


def snapshot(value: Any) -> Any:
    """Copy tensors in nested containers to the CPU; NumPy numbers become Python's, as loading rejects them."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor):
        # A tensor that is split over ranks is gathered, which all of them call.
        return getattr(value, "full_tensor", value.detach)().detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = type(value)()  # such as a Counter, which schedulers count by
        copied.update({key: snapshot(item) for key, item in value.items()})
        return copied
    return type(value)(map(snapshot, value)) if type(value) in (list, tuple) else value


def state_of(part: Any) -> dict[str, Any]:
    """Return a CPU copy of the `state_dict` of a part; names have no prefix of `torch.compile`."""
    return snapshot(plain_state_dict(part) if isinstance(part, nn.Module) else part.state_dict())


def capture(place: Place, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return an independent copy of parts by name, the fields of `place`, and the global random `streams`."""
    weights = weights_of(parts)
    states = {
        name: weights[name] if name in weights else None if part is None else state_of(part)
        for name, part in parts.items()
    }
    trained = {name: snapshot(weight) for name, weight in _switched(parts).items()}
    parameters = _parameters(parts)
    for name, state in states.items():
        if name.partition(".")[0] == "optimizer" and state is not None:
            optimizer_state.name_groups(state["param_groups"], parts[name], parameters)
    far = {**vars(place), "losses": snapshot(place.losses), "scalars": snapshot(place.scalars)}
    return {**states, **({"trained": trained} if trained else {}), **far, "streams": global_states()}


def warn_of_unsaved(parts: Mapping[str, Any]) -> None:
    """Warn of momenta that a resumed training would lack; call it after a step."""
    for optimizer in _optimizers(parts):
        lacking = optimizer_state.unsaved(optimizer)
        if lacking:
            _log.warning(
                "optimizer: the state_dict of %s lacks the tensors in %s, and so do checkpoints: unless each step "
                "computes them again, a resumed training differs; let state_dict return and load_state_dict load them",
                type(optimizer).__name__,
                ", ".join(lacking),
            )


def weights_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the weights to evaluate: the states of `model` and `loss`."""
    with evaluation_weights(_optimizers(parts)):
        return {name: state_of(parts[name]) for name in ("model", "loss") if parts.get(name) is not None}


def _optimizers(parts: Mapping[str, Any]) -> list[Any]:
    return [part for name, part in parts.items() if name.partition(".")[0] == "optimizer" and part is not None]


def _switched(parts: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the parameters that have other values in evaluation, by name."""
    held = {id(weight) for each in switching(_optimizers(parts)) for g in each.param_groups for weight in g["params"]}
    return {name: weight for name, weight in _parameters(parts).items() if id(weight) in held} if held else {}


@torch.no_grad()
def _load_trained(parts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Load the training weights if `model` and `loss` hold the evaluation weights."""
    kept = state.get("trained", {})
    for name, weight in _switched(parts).items():
        if name in kept:
            weight.copy_(kept[name])


def _parameters(parts: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the parameters that an optimizer may train, by name."""
    modules = {"": parts.get("model"), "loss.": parts.get("loss")}
    return {
        f"{prefix}{plain_name(name)}": parameter
        for prefix, module in modules.items()
        if module is not None
        for name, parameter in module.named_parameters()
    }


def check_whole(state: Mapping[str, Any], parts: Mapping[str, Any], path: Path) -> None:
    """Check that a state holds all parts of a training, not just weights."""
    needed = {"epoch", "batch", "step", "losses", "streams"}
    for name, part in parts.items():
        # Callbacks may be new, and earlier versions saved no statistics of a loss.
        if part is None or name == "callbacks" or (name == "loss" and not any(True for _ in part.parameters())):
            continue
        needed.add(name)
    missing = sorted(name for name in needed if state.get(name) is None)
    if missing:
        raise CheckpointError(
            f"{path}: holds no {', '.join(missing)}, so it is no state of this training; expected one saved as "
            "checkpoints/last.pt (best.pt holds weights alone)"
        )


def resume(parts: Mapping[str, Any], state: Mapping[str, Any], path: Path) -> Place:
    """Load all of a state into the parts of a training and the global random streams.

    Args:
        parts: The parts by name, as given to `capture`.
        state: The state.
        path: Its file, for messages.

    Returns:
        The place of the state.

    Raises:
        CheckpointError: If it does not fit.
    """
    for name, part in parts.items():
        if part is not None and state.get(name) is not None:
            if name.partition(".")[0] == "optimizer":
                optimizer_state.add_groups(part, state[name], _parameters(parts))
            _load(part, state[name], name, path)
        elif part is not None and name == "callbacks":
            _log.warning("%s holds no callbacks: those of this training start from the beginning", path)
    _load_trained(parts, state)
    set_global_states(state["streams"])
    return _place_of(state, parts)


def branch(parts: Mapping[str, Any], state: Mapping[str, Any], path: Path, config: Mapping[str, Any]) -> Place:
    """Load the parts of a state that keep their meaning under a changed config; return the place to continue from.

    The weights always do. Where the config of a part changed, the new one counts: an optimizer keeps its momenta and
    takes the new learning rate, a schedule is advanced from its beginning to the place, the scale of the loss and the
    best value are reset. Other data, or another seed, change the order of samples, so an epoch in the middle restarts.
    """
    saved = state.get("config", {})
    model = parts.get("model")
    if model is not None:
        check_weights(model, state, path, config)
        load_plain_state_dict(model, state["model"])
    place = _place_of(state, parts)
    place.stopped = False
    data = data_of(state)
    if differ(saved, config, data, "seed", "amp.accumulate") and place.batch:
        _log.warning(
            "data, seed or amp.accumulate differ from those in %s: epoch %d starts again", path, place.epoch + 1
        )
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
            try:
                part.load_state_dict(state.get(name) or {})
            except CheckpointError as error:
                _log.warning("%s: %s; those of this training start from the beginning", path, error)
        elif kind not in ("model", "scheduler") and part is not None and kept.get(name, True):
            _load(part, state[name], name, path)
    if not differ(saved, config, "optimizer.name"):
        _load_trained(parts, state)
    return place


def data_of(state: Mapping[str, Any]) -> str:
    """Return the name of the data ingredient of a state; `data` for earlier versions, which did not record it."""
    split = state.get("split")
    return split.get("ingredient", "data") if isinstance(split, Mapping) else "data"


def keeps_monitor(state: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether a best value stays comparable: the same metric, data and loss."""
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
    """Load an optimizer and its schedule; if the config of either changed, the new rates apply."""
    saved = state.get("config", {})
    optimizer, schedule = parts[name], parts.get(of_schedule)
    length = ["training.epochs"] if schedule is None or schedule.has_length else []
    is_changed = differ(saved, config, "optimizer", "model", "scheduler", data_of(state), "amp.accumulate", *length)
    if differ(saved, config, "optimizer.name"):
        _log.warning("optimizer.name differs from that in %s: the optimizer starts without momenta", path)
    elif is_changed:
        _load(optimizer, optimizer_state.regrouped(state[name], optimizer, _parameters(parts)), name, path)
    else:
        optimizer_state.add_groups(optimizer, state[name], _parameters(parts))
        _load(optimizer, state[name], name, path)
    if schedule is None:
        return
    if is_changed:
        with warnings.catch_warnings():
            # The optimizer has stepped, as another object.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            schedule.advance(place.step, place.epoch)
    else:
        _load(schedule, state[of_schedule], of_schedule, path)


def _place_of(state: Mapping[str, Any], parts: Mapping[str, Any]) -> Place:
    modules = [part for part in parts.values() if isinstance(part, nn.Module)]
    device = next((parameter.device for module in modules for parameter in module.parameters()), torch.device("cpu"))

    def on_device(values: list[Any]) -> list[Any]:
        return [value.to(device) if isinstance(value, Tensor) else value for value in values]

    # States of earlier versions have neither `scalars` nor `stopped`.
    scalars = {name: on_device(values) for name, values in state.get("scalars", {}).items()}
    losses, is_stopped = on_device(state["losses"]), state.get("stopped", False)
    return Place(state["epoch"], state["batch"], state["step"], losses, scalars, is_stopped)


def _load(part: Any, state: Any, name: str, path: Path) -> None:
    try:
        if isinstance(part, nn.Module):
            load_plain_state_dict(part, state)
        else:
            with optimizer_state.sharing(part):
                part.load_state_dict(optimizer_state.with_names(state, part))
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError, IndexError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointError(f"{path}: its {name} does not fit this training ({reason})") from error


def differ(saved: Mapping[str, Any], mine: Mapping[str, Any], *names: str) -> bool:
    """Return whether two configs differ in some entries, except settings of reading such as `num_workers`."""
    return any(_json_text(value_at(saved, name)) != _json_text(value_at(mine, name)) for name in names)


def _json_text(value: Any) -> str:
    if isinstance(value, Mapping):
        value = {name: item for name, item in value.items() if name not in _OF_READING}
    return json.dumps(plain(value), sort_keys=True)


_OWN = ("streams", "losses", "scalars")


def of_all_ranks(state: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Return a state with the entries of all ranks, which all call this; scalars are means over ranks with values."""
    if ranks.size == 1:
        return state
    own = ranks.gather({name: state[name] for name in _OWN})
    names = dict.fromkeys(name for each in own for name in each["scalars"])
    scalars = {name: _means([each["scalars"][name] for each in own if name in each["scalars"]]) for name in names}
    return {**state, "losses": _means([each["losses"] for each in own]), "scalars": scalars, "ranks": own}


def of_rank(state: Mapping[str, Any], ranks: Ranks) -> Mapping[str, Any]:
    """Return the state for this rank; if their number has changed, all but rank 0 keep their random streams."""
    own = state.get("ranks") or [{}]
    if len(own) == ranks.size:
        return {**state, **own[ranks.rank]}
    if not ranks.is_first:
        return {**state, "streams": global_states()}
    _log.warning(
        "the state is of %d processes, and this training has %d: random numbers, such as those of dropout, differ from "
        "those of an uninterrupted training",
        len(own),
        ranks.size,
    )
    return state


def _means(columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the means over ranks of values that each has for the same steps."""
    return [sum(map(float, values)) / len(values) for values in zip(*columns, strict=True)]
