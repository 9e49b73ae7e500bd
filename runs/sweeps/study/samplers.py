"""Optuna's samplers and pruners for a spec; samplers so seeded that one agent suggests the same points again."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sacristan.runs.errors import needing_extra
from sacristan.runs.sweeps.spec import Spec
from sacristan.runs.sweeps.spec.distributions import Choice, Constant, Reals
from sacristan.runs.sweeps.spec.fields import identity
from sacristan.runs.sweeps.study.points import choices, grid_point, position_of

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


@contextlib.contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Make an object of Optuna that may change in its next version; which one is installed is pinned."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def check_extra(spec: Spec) -> None:
    """Ask for the packages that a sweep needs, before anything is started."""
    with needing_extra("sweeps", "a sweep"):
        import optuna  # noqa: F401
    make_sampler(spec, 0, 0)


def draws_alone(spec: Spec) -> bool:
    """Tell whether an agent can choose a point from its number and the seed alone, and will hardly choose one twice."""
    parameters = spec.parameters.values()
    if spec.grid is not None:
        values = [one.distribution.values for one in parameters if isinstance(one.distribution, Choice)]
        return all(len(set(map(identity, some))) == len(some) for some in values)
    if spec.method not in ("random", "qmc"):
        return False
    return any(
        isinstance(one.distribution, Reals) and one.distribution.q is None and not one.when for one in parameters
    )


def make_sampler(spec: Spec, seed: int, number: int) -> BaseSampler:
    """Return the sampler for one trial; for a grid, it suggests the point `number`.

    It has no memory of its own: what it suggests depends on the study's trials, the seed and the number. So one agent
    with one seed suggests the same points again, after an interruption as well.
    """
    with needing_extra("sweeps", f"the method {spec.method}"), without_experimental_warnings():
        return _make(spec, seed, number)


def _make(spec: Spec, seed: int, number: int) -> BaseSampler:
    import numpy as np
    from optuna import samplers

    own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    options = dict(spec.method_options)
    if spec.grid is not None:
        from sacristan.runs.sweeps.study.optuna_extensions import FixedSampler

        return FixedSampler(_on_grid(spec, grid_point(spec, number, seed)))
    if spec.method == "random":
        return samplers.RandomSampler(own)
    if spec.method in ("bayes", "tpe"):
        if any(parameter.when for parameter in spec.parameters.values()):
            # Parameters that are set together are modelled together.
            options = {"multivariate": True, "group": options.get("multivariate", True), **options}
        return samplers.TPESampler(seed=own, **options)
    if spec.method == "gp":
        return samplers.GPSampler(seed=own, warn_independent_sampling=False, **options)
    if spec.method == "cma-es":
        import cmaes  # noqa: F401, which Optuna would ask for in the midst of a study

        return samplers.CmaEsSampler(seed=own, warn_independent_sampling=False, **options)
    if spec.method == "qmc":
        from sacristan.runs.sweeps.study.optuna_extensions import QuasiRandomSampler

        searched = [
            name for name, parameter in spec.parameters.items() if not isinstance(parameter.distribution, Constant)
        ]
        names = [spec.labels[name] for name in searched]
        return QuasiRandomSampler(names, number, seed, **options)
    return samplers.NSGAIISampler(seed=own, **options)


def _on_grid(spec: Spec, point: dict[str, Any]) -> dict[str, Any]:
    """Return what is to be suggested at a point of the grid, by label."""
    suggestions = {}
    for name, value in point.items():
        values = spec.choices_of(spec.parameters[name])
        suggestions[spec.labels[name]] = value if values is None else choices(values)[position_of(values, value)]
    return suggestions


def make_pruner(spec: Spec) -> BasePruner | None:
    """Return the pruner that decides which runs end early; None if the spec ends none early."""
    if spec.stopping is None:
        return None
    with needing_extra("sweeps", "early_terminate"):
        from optuna import pruners

        from sacristan.runs.sweeps.study.optuna_extensions import Hyperband
    options = spec.stopping.options
    with without_experimental_warnings():
        if spec.stopping.name == "hyperband":
            return Hyperband(options)
        if spec.stopping.name == "patient":
            return pruners.PatientPruner(None, **options)
        kinds = {
            "median": pruners.MedianPruner,
            "percentile": pruners.PercentilePruner,
            "successive_halving": pruners.SuccessiveHalvingPruner,
            "optuna_hyperband": pruners.HyperbandPruner,
            "threshold": pruners.ThresholdPruner,
        }
        return kinds[spec.stopping.name](**options)
