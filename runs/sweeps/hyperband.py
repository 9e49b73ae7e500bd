"""wandb's rule of early termination, which decides as `hyperband_stop_runs` of its package `sweeps` 0.3.0 does.

A run is judged after certain numbers of reports, its bands; see `runs.sweeps.methods.bands`. What counts is how many
finite values it has reported, not their steps. It is stopped if its value at the last band it has reached, or its best
one if not `strict`, is worse than that of the run which is at 1 / eta of all runs there, in order from the best. All
runs of the sweep count: running, ended and stopped. The rule is applied at every report.

It is a successive halving without brackets that run beside each other; Li et al. 2018, https://arxiv.org/abs/1603.06560
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optuna.pruners import BasePruner
from optuna.study import StudyDirection

from runs.sweeps.methods import bands

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

__all__ = ["Hyperband"]


class Hyperband(BasePruner):
    """wandb's hyperband.

    Args:
        options: `eta`, `strict`, and `min_iter`, or `max_iter` and `s`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._bands = bands(options)
        self._share = 1.0 / options["eta"]
        self._strict = options["strict"]

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
        history = _history(trial, sign)
        band = max((band for band in self._bands if band <= len(history)), default=None)
        if band is None:
            return False
        others = [other for other in study.get_trials(deepcopy=False) if other.number != trial.number]
        values = [history[band - 1]]
        values += [past[band - 1] for past in (_history(other, sign) for other in others) if len(past) >= band]
        threshold = sorted(values)[int(self._share * len(values))]
        return (history[band - 1] if self._strict else min(history)) > threshold


def _history(trial: FrozenTrial, sign: float) -> list[float]:
    """Return the finite values that a trial has reported, in order; the lesser the better."""
    reports = sorted(trial.intermediate_values.items())
    return [sign * value for _, value in reports if math.isfinite(value)]
