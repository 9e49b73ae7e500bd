"""The mode of modules: training or evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

__all__ = ["evaluating"]


@contextlib.contextmanager
def evaluating(*roots: nn.Module) -> Iterator[None]:
    """Put modules in evaluation mode inside the block, then restore the mode of each, and of each module in them.

    Args:
        roots: Such as the model and the module of its loss. Frozen layers, which stay in evaluation mode during a
            training, keep theirs.
    """
    modes = [(module, module.training) for root in roots for module in root.modules()]
    for root in roots:
        root.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
