"""Ingredient `probe`: inspects a training: statistics of chosen modules, and a profile of the time of steps."""

from __future__ import annotations

from collections.abc import Sequence

from sacristan.configs import Map
from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.errors import ConfigError

__all__ = ["ingredient"]

_WHAT = ("inputs", "activations", "gradients", "weights", "histograms", "images")

ingredient = Ingredient("probe")


@ingredient.config
def config() -> None:
    # modules to inspect: a glob on their dotted names, or several, such as body.*; model.summary shows the names
    modules: list[str] | str = []
    # optimizer steps between two probes
    every = 100
    # what to log: inputs, activations, gradients, weights, histograms, images (of feature maps)
    what: list[str] = ["activations", "gradients", "weights"]
    # first and last step to profile, such as [10, 19]; [] for none
    profile: list[int] = []


@ingredient.check
def _check_config(config: Map) -> None:
    """Reject invalid intervals, and statistics that do not exist."""
    check_probes(config.every, config.what)
    check_profile(config.profile)


def check_probes(every: int, what: Sequence[str]) -> None:
    """Check the settings of probes."""
    if every < 1:
        raise ConfigError(f"probe.every: got {every}, expected at least 1")
    unknown = [name for name in what if name not in _WHAT]
    if unknown:
        hint = suggestion(unknown[0], _WHAT)
        raise ConfigError(f"probe.what: got {unknown[0]!r}, which no probe measures; {hint}")


def check_profile(steps: Sequence[int]) -> None:
    """Check that the steps of a profile are its first and last step, from 1, or empty for no profile."""
    if len(steps) not in (0, 2) or (steps and not 1 <= steps[0] <= steps[-1]):
        raise ConfigError(f"probe.profile: got {list(steps)}, expected the first and the last step, such as [10, 19]")
