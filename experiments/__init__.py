"""Experiments: the strict, Map-injecting `Experiment`, and the training loop that experiments call."""

import ingredients  # noqa: F401 - first, because it imports sacred without its warning
from experiments.experiment import Experiment

__all__ = ["Experiment"]
