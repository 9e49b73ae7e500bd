"""Optimizers whose step computes the loss again: LBFGS, and those like SAM."""

from __future__ import annotations

import functools
import inspect

import torch

__all__ = ["recomputes_loss", "starts_from_gradients"]


def recomputes_loss(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimizer's `step` needs a closure, which computes loss and gradients again."""
    return _needs_closure(type(optimizer))  # type: ignore[arg-type]  # mypy takes no class for hashable


def starts_from_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether its `step` expects gradients before it calls the closure, as those of SAM's kind do.

    They are told by their methods `first_step` and `second_step`. Source of SAM: https://arxiv.org/abs/2010.01412
    """
    return _has_two_steps(type(optimizer))


def _has_two_steps(cls: type) -> bool:
    return all(callable(getattr(cls, name, None)) for name in ("first_step", "second_step"))


@functools.cache
def _needs_closure(cls: type[torch.optim.Optimizer]) -> bool:
    if _has_two_steps(cls):
        return True  # most of them have a default of None, which they refuse
    parameters = [*inspect.signature(cls.step).parameters.values()][1:]
    return any(one.name == "closure" and one.default is one.empty for one in parameters)
