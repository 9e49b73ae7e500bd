"""wandb's rule of early termination; it decides as `hyperband_stop_runs` of wandb's package `sweeps` 0.3.0.

A run is judged at its bands, certain numbers of reports; see `sacristan.runs.sweeps.spec.methods.bands`. Only the
finite values that it reported count, not their steps. A run is stopped if its value at the last band it reached, or its
best value if not `strict`, is worse than that of the run at rank 1 / eta among all runs there. All runs of the sweep
count: running, ended and stopped. The rule is applied at every report.

This is successive halving without parallel brackets; Li et al. 2018, https://arxiv.org/abs/1603.06560
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optuna.pruners import BasePruner
from optuna.study import StudyDirection

from sacristan.runs.sweeps.spec.methods import bands

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

__all__ = ["Hyperband"]


class Hyperband(BasePruner):
    """wandb's hyperband, for one study.

    Args:
        options: `eta`, `strict`, and `min_iter`, or `max_iter` and `s`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._bands = bands(options)
        self._share = 1.0 / options["eta"]
        self._strict = options["strict"]
        # Histories of ended trials, by the number of the trial: there may be thousands.
        self._ended: dict[int, list[float]] = {}

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
        history = _history(trial, sign)
        band = max((band for band in self._bands if band <= len(history)), default=None)
        if band is None:
            return False
        values = [history[band - 1]]
        for other in study.get_trials(deepcopy=False):
            if other.number != trial.number:
                values += self._history_of(other, sign)[band - 1 : band]
        threshold = sorted(values)[int(self._share * len(values))]
        return (history[band - 1] if self._strict else min(history)) > threshold

    def _history_of(self, trial: FrozenTrial, sign: float) -> list[float]:
        if not trial.state.is_finished():
            return _history(trial, sign)
        if trial.number not in self._ended:
            self._ended[trial.number] = _history(trial, sign)
        return self._ended[trial.number]


def _history(trial: FrozenTrial, sign: float) -> list[float]:
    """Return the finite values that a trial reported, in order; the lesser the better."""
    reports = sorted(trial.intermediate_values.items())
    return [sign * value for _, value in reports if math.isfinite(value)]
