"""Names and weights of models without `_orig_mod.`, which `torch.compile` adds to names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

__all__ = ["load_plain_state_dict", "plain_name", "plain_names", "plain_state_dict"]


def plain_name(name: str) -> str:
    """Return the name of a parameter or module without the prefix of `torch.compile`."""
    return name.replace("_orig_mod.", "")


def plain_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict with plain names, see `plain_name`, in the same order."""
    return {plain_name(name): value for name, value in state.items()}


def plain_state_dict(module: nn.Module) -> dict[str, Any]:
    """Return the state dict of a module with plain names, see `plain_name`; `load_plain_state_dict` loads it."""
    return plain_names(module.state_dict())


def load_plain_state_dict(module: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Load a state dict into a module; either may be compiled."""
    own = {plain_name(name): name for name in module.state_dict()}
    module.load_state_dict({own.get(name, name): value for name, value in plain_names(state).items()}, strict=strict)
