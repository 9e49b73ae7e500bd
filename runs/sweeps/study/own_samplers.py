"""Samplers that Optuna lacks: a given point, and quasi-random sequences for many agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler

from sacristan.runs.sweeps.study.points import QUANTILE

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

__all__ = ["FixedSampler", "QuasiRandomSampler"]


class _IndependentSampler(BaseSampler):
    """A sampler that gives each parameter by its name alone."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}


class FixedSampler(_IndependentSampler):
    """Suggests given values, by the names of the parameters."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._values[param_name]


class QuasiRandomSampler(_IndependentSampler):
    """Suggests one point of a sequence that fills the space evenly.

    Optuna's own counts in the study which point is next, two agents at once may get the same, and the first one is
    random. Here the trial's number is that of the point.

    Args:
        names: All parameters, each a dimension of the sequence.
        scramble: Whether to scramble; a Sobol sequence that is not begins in a corner.
    """

    def __init__(
        self, names: Sequence[str], number: int, seed: int, qmc_type: str = "sobol", scramble: bool = True
    ) -> None:
        from scipy.stats import qmc

        engine = {"sobol": qmc.Sobol, "halton": qmc.Halton}[qmc_type](len(names), scramble=scramble, seed=seed)
        if number:
            engine.fast_forward(number)
        self._quantiles = dict(zip(names, engine.random(1)[0].tolist(), strict=True))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        quantile = self._quantiles[param_name.removesuffix(QUANTILE)]
        return _value(param_distribution, quantile)


def _value(distribution: BaseDistribution, quantile: float) -> Any:
    """Return the value at a quantile from 0, included, to 1, excluded."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(quantile * len(distribution.choices))]
    if isinstance(distribution, IntDistribution):
        return distribution.low + int(quantile * (distribution.high - distribution.low + 1))
    if not isinstance(distribution, FloatDistribution):
        raise TypeError(f"got a {type(distribution).__name__}, expected one of Optuna's distributions")
    low, high = distribution.low, distribution.high
    if distribution.log:
        return min(max(low * (high / low) ** quantile, low), high)
    return low + quantile * (high - low)
