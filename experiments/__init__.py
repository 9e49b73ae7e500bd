"""Experiments: the strict, Map-injecting `Experiment`, and the training loop that experiments call."""

from __future__ import annotations

import importlib
from typing import Any

import ingredients  # noqa: F401 - first, because it imports sacred without its warning
from experiments.experiment import Experiment

_HOMES = {"loop": "experiments.training.loop", "results": "experiments.training.results"}

__all__ = ["Experiment", "loop", "results"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'experiments' has no attribute {name!r}")
    return importlib.import_module(_HOMES[name])
