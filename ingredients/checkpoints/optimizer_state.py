"""States of optimizers: the names of their parameters, other groups, and what a `state_dict` lacks."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def name_groups(saved: list[dict[str, Any]], optimizer: Any, parameters: Mapping[str, Tensor]) -> None:
    """Add the names of their parameters to saved groups of an optimizer that lack them."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    for kept, group in zip(saved, optimizer.param_groups, strict=True):
        own = [names.get(id(parameter)) for parameter in group["params"]]
        if "names" not in kept and "param_names" not in kept and None not in own:
            kept["names"] = own


def add_groups(optimizer: Any, saved: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """Add to a new optimizer the groups that callbacks had added to the saved one."""
    later = saved["param_groups"][len(optimizer.param_groups) :]
    for group in later:
        names = group.get("names", group.get("param_names"))
        if not names or not parameters.keys() >= set(names):
            return  # loading says that the groups differ
        optimizer.add_param_group({**group, "params": [parameters[name] for name in names]})


def regrouped(state: Mapping[str, Any], optimizer: Any, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the state of an optimizer for other groups; the state of a parameter follows its name."""
    groups = optimizer.state_dict()["param_groups"]
    name_groups(groups, optimizer, parameters)
    numbers, names = _by_name(state["param_groups"]), _by_name(groups)
    kept = {names[name]: state["state"][n] for name, n in numbers.items() if name in names and n in state["state"]}
    # Entries of a group that are no settings, such as the number of steps of schedule-free optimizers, continue.
    counted = getattr(optimizer, "defaults", {}).keys() - inspect.signature(type(optimizer)).parameters.keys()
    before = {number: group for group in state["param_groups"] for number in group["params"]}
    numbers_before = {names[name]: number for name, number in numbers.items() if name in names}
    for group in groups:
        known_before = [before[numbers_before[number]] for number in group["params"] if number in numbers_before]
        for saved in known_before[:1]:
            group.update({key: saved[key] for key in counted & saved.keys()})
    return {"state": kept, "param_groups": groups}


def _by_name(groups: list[dict[str, Any]]) -> dict[str, int]:
    """Return the numbers of parameters by name; those without one are counted."""
    numbers: dict[str, int] = {}
    unnamed = itertools.count()
    for group in groups:
        names = group.get("names", group.get("param_names")) or ()
        for index, number in enumerate(group["params"]):
            numbers[names[index] if index < len(names) else f"(unnamed {next(unnamed)})"] = number
    return numbers


def with_names(state: Any, part: Any) -> Any:
    """Return the state of an optimizer with `names` in its groups; earlier versions used torch's `param_names`."""
    groups = getattr(part, "param_groups", None)
    if not groups or "names" not in groups[0] or not isinstance(state, Mapping):
        return state
    renamed = [
        {"names" if key == "param_names" else key: value for key, value in group.items()}
        for group in state["param_groups"]
    ]
    return {**state, "param_groups": renamed}


@contextlib.contextmanager
def sharing(part: Any) -> Iterator[None]:
    """Keep what an inner optimizer shares with its wrapper, and torch's `load_state_dict` would replace."""
    inner = [each for each in vars(part).values() if hasattr(each, "param_groups")] if hasattr(part, "state") else []
    shared = [(each, name) for each in inner for name in ("state", "param_groups") if _has_same(each, part, name)]
    yield
    for each, name in shared:
        setattr(each, name, getattr(part, name))


def _has_same(one: Any, other: Any, name: str) -> bool:
    return getattr(one, name, None) is getattr(other, name, other)


def unsaved(optimizer: Any) -> list[str]:
    """Return the optimizer's attributes with tensors, such as momenta, that its `state_dict` lacks.

    Such tensors have the shape of a parameter and are in the state of an inner optimizer, in a list, or by parameter.
    """
    saved = list(_tensors(optimizer.state_dict(), everywhere=True))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    excluded_ids = {id(tensor) for tensor in (*saved, *parameters, *(parameter.grad for parameter in parameters))}
    shapes = {parameter.shape for parameter in parameters}

    def lacks(value: Any) -> bool:
        if isinstance(value, Tensor):
            return False
        unknown = [each for each in _tensors(value) if id(each) not in excluded_ids and each.shape in shapes]
        return any(not any(_is_same(each, other) for other in saved) for each in unknown)

    return [
        name for name, value in vars(optimizer).items() if name not in ("param_groups", "defaults") and lacks(value)
    ]


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other.to(one.device))


def _tensors(value: Any, *, everywhere: bool = False, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Yield the tensors in lists, mappings and optimizers; `everywhere` includes those under names."""
    seen = set() if seen is None else seen
    if isinstance(value, Tensor):
        yield value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    items: Iterable[Any] = ()
    if isinstance(value, Mapping):
        items = [item for key, item in value.items() if everywhere or not isinstance(key, str)]
        everywhere = True  # the entries of one parameter have names
    elif isinstance(value, list | tuple):
        items = value
    elif hasattr(value, "param_groups"):
        items = [item for name, item in vars(value).items() if name not in ("param_groups", "defaults")]
    for item in items:
        yield from _tensors(item, everywhere=everywhere, seen=seen)
