"""The mode that modules are in: training or evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

__all__ = ["evaluating"]


@contextlib.contextmanager
def evaluating(*roots: nn.Module) -> Iterator[None]:
    """Put modules in evaluation mode; afterwards each of them, and of theirs, is in the mode that it was in."""
    modes = [(module, module.training) for root in roots for module in root.modules()]
    for root in roots:
        root.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
