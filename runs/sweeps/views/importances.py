"""Importances: the share of each setting in the variation of a result, over the trials of a study or any runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sacristan.runs.errors import needing_extra
from sacristan.runs.sweeps.study.samplers import without_experimental_warnings

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

__all__ = ["FANOVA", "IMPURITY", "MOST_RUNS", "importances_among", "importances_over", "thinned"]

# Optuna's fANOVA takes 15 ms for each trial.
MOST_RUNS = 500
# Numbers whose greatest is so many times the least are compared by their logarithms.
_WIDE = 50
FANOVA, IMPURITY = "fANOVA", "mean decrease in impurity"


def importances_over(
    settings: Mapping[str, Sequence[float | str]], results: Sequence[float]
) -> dict[str, dict[str, float]]:
    """Estimate the share of each setting in the variation of a finite result over any runs.

    Returns the shares by method and setting, from 500 runs at most; nothing for fewer than three runs or equal results.
    """
    with needing_extra("sweeps", "importances"), without_experimental_warnings():
        import optuna

        laws = {name: _distribution(values) for name, values in settings.items()}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
        study.add_trials(
            optuna.trial.create_trial(
                params={name: values[place] for name, values in settings.items()}, distributions=laws, value=result
            )
            for place, result in enumerate(results)
        )
        return importances_among(study, tuple(study.get_trials(deepcopy=False)), tuple(settings), 0)


def _distribution(values: Sequence[float | str]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    numbers = [value for value in values if not isinstance(value, str)]
    if len(numbers) < len(values):
        return CategoricalDistribution(sorted(set(values), key=str))
    low, high = min(numbers), max(numbers)
    return FloatDistribution(low, high, log=low > 0 and high / low > _WIDE)


def importances_among(
    study: Study, complete: tuple[FrozenTrial, ...], parameters: tuple[str, ...], place: int
) -> dict[str, dict[str, float]]:
    """Estimate the share of each parameter in the variation of an objective, as `importances_over`.

    Each trial has values and all of the parameters; `place` is the objective's position.
    """
    from optuna import importance

    study, complete = thinned(study, complete, MOST_RUNS)
    values = [trial.values[place] for trial in complete]
    if not parameters or len(values) < 3 or not all(map(math.isfinite, values)) or min(values) == max(values):
        return {}
    evaluators = {
        FANOVA: importance.FanovaImportanceEvaluator(seed=0),
        IMPURITY: importance.MeanDecreaseImpurityImportanceEvaluator(seed=0),
    }
    return {
        name: importance.get_param_importances(
            study, evaluator=evaluator, params=list(parameters), target=lambda trial: trial.values[place]
        )
        for name, evaluator in evaluators.items()
    }


def thinned(study: Study, trials: tuple[FrozenTrial, ...], num: int) -> tuple[Study, tuple[FrozenTrial, ...]]:
    """Return at most `num` trials (2 or more), spread evenly from the first to the last, and a study of these."""
    import optuna

    if len(trials) <= num:
        return study, trials
    few = optuna.create_study(directions=study.directions, storage=optuna.storages.InMemoryStorage())
    few.add_trials(trials[round(place * (len(trials) - 1) / (num - 1))] for place in range(num))
    return few, tuple(few.get_trials(deepcopy=False))
