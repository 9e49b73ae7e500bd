"""Experiments: the strict, Map-injecting `Experiment`, and the training loop that experiments call."""

from experiments.experiment import Experiment

__all__ = ["Experiment"]
