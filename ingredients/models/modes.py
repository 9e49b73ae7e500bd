"""The mode of modules, and of optimizers that evaluate other weights than they train: training or evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["evaluating", "evaluation_weights", "switching"]


@contextlib.contextmanager
def evaluating(*roots: nn.Module) -> Iterator[None]:
    """Put modules in evaluation mode inside the block, then restore the mode of each, and of each module in them.

    Frozen layers, which are in evaluation mode during training, stay in it.
    """
    modes = [(module, module.training) for root in roots for module in root.modules()]
    for root in roots:
        root.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def switching(optimizers: Iterable[Any]) -> list[Any]:
    """Return the optimizers with methods `train` and `eval`, which switch between two sets of weights.

    Source: Defazio et al., The Road Less Scheduled, https://arxiv.org/abs/2405.15682
    """
    return [each for each in optimizers if all(callable(getattr(each, name, None)) for name in ("train", "eval"))]


@contextlib.contextmanager
def evaluation_weights(optimizers: Iterable[Any]) -> Iterator[None]:
    """Give a model its evaluation weights inside the block, then its training weights again, bit for bit.

    The optimizers are in training mode; only `switching` ones change anything.
    """
    modal = switching(optimizers)
    weights = [weight for each in modal for group in each.param_groups for weight in group["params"]]
    with torch.no_grad():
        kept = [weight.clone() for weight in weights]
        for each in modal:
            each.eval()
    try:
        yield
    finally:
        with torch.no_grad():
            for each in modal:
                each.train()
            for weight, value in zip(weights, kept, strict=True):
                weight.copy_(value)  # the way back is rounded
