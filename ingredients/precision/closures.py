"""Optimizers whose step computes the loss again: LBFGS, SAM and the like."""

from __future__ import annotations

import functools
import inspect

import torch

__all__ = ["recomputes_loss", "starts_from_gradients"]


def recomputes_loss(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimizer computes loss and gradients again in its step, by a closure that `step` requires.

    Args:
        optimizer: The optimizer. Those of SAM's kind count even where `step` has a default for the closure, as they
            reject it.
    """
    return _needs_closure(type(optimizer))  # type: ignore[arg-type]  # mypy takes no class for hashable


def starts_from_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimizer expects gradients before it calls the closure, as those of SAM's kind do.

    Args:
        optimizer: The optimizer; the methods `first_step` and `second_step` mark the kind.

    Source of SAM: https://arxiv.org/abs/2010.01412
    """
    return _has_two_steps(type(optimizer))


def _has_two_steps(cls: type) -> bool:
    return all(callable(getattr(cls, name, None)) for name in ("first_step", "second_step"))


@functools.cache
def _needs_closure(cls: type[torch.optim.Optimizer]) -> bool:
    if _has_two_steps(cls):
        return True  # most have a default of None, which they reject
    parameters = [*inspect.signature(cls.step).parameters.values()][1:]
    return any(parameter.name == "closure" and parameter.default is parameter.empty for parameter in parameters)
