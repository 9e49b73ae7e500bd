"""Optuna's pruners for the rules of early termination of a spec, and wandb's hyperband as one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runs.errors import needing_extra
from runs.sweeps.spec.spec import Spec
from runs.sweeps.study.samplers import without_experimental_warnings

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

__all__ = ["make_pruner"]


def make_pruner(spec: Spec) -> BasePruner | None:
    """Return the pruner that decides which runs end early; None if the spec ends none early.

    Raises:
        MissingExtraError: If Optuna is not installed.
    """
    if spec.stopping is None:
        return None
    with needing_extra("sweeps", "early_terminate"):
        from optuna import pruners

        from runs.sweeps.spec.hyperband import Hyperband
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
