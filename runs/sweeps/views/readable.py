"""A study as people read it: values in place of quantiles, names of metrics in place of `value`."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from runs.sweeps.spec.laws import Choice, Reals
from runs.sweeps.spec.spec import Spec
from runs.sweeps.study.points import QUANTILE, choices, position_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

__all__ = ["FANOVA", "IMPURITY", "Readable", "make_readable", "most_important", "thinned"]

_MOST_IN_CONTOURS = 4
# Optuna's fANOVA takes 15 ms for each trial.
_MOST_FOR_IMPORTANCES = 500
FANOVA, IMPURITY = "fANOVA", "mean decrease in impurity"


@dataclasses.dataclass(frozen=True)
class Readable:
    """A study to be drawn.

    Attributes:
        study: A copy in memory, with values for parameters.
        metrics: The name of each objective.
        complete: The trials that ended with values, in order.
        parameters: Names of the parameters that some of these have, and that were searched.
        common: Those that all of them have.
        importances: For each objective, by the name of the method, the parts that the common parameters have in the
            variation of its values, estimated from 500 trials at most. There are no methods where trials are too few,
            or their values all the same.
    """

    study: Study
    metrics: tuple[str, ...]
    complete: tuple[FrozenTrial, ...]
    parameters: tuple[str, ...]
    common: tuple[str, ...]
    importances: tuple[dict[str, dict[str, float]], ...]


def make_readable(study: Study, spec: Spec | None) -> Readable:
    """Return a study as people read it.

    Args:
        study: The study.
        spec: What it searches; without it quantiles stay quantiles.
    """
    import optuna
    from optuna.trial import TrialState

    # In the order of their points: those of agents that are at it at once have other numbers in the study.
    trials = sorted(study.get_trials(deepcopy=False), key=lambda trial: trial.user_attrs.get("point", trial.number))
    shown = optuna.create_study(directions=study.directions, storage=optuna.storages.InMemoryStorage())
    shown.add_trials(_with_values(trials, spec))
    metrics = study.metric_names or ([objective.name for objective in spec.objectives] if spec else [])
    if len(metrics) != len(study.directions):
        metrics = ["value"] if len(study.directions) == 1 else [f"value {n}" for n in range(len(study.directions))]
    complete = tuple(shown.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    searched = [
        name
        for name in dict.fromkeys(name for trial in complete for name in trial.params)
        if not any(trial.distributions[name].single() for trial in complete if name in trial.params)
    ]
    common = tuple(name for name in searched if all(name in trial.params for trial in complete))
    importances = tuple(_importances(shown, complete, common, place) for place in range(len(metrics)))
    return Readable(shown, tuple(metrics), complete, tuple(searched), common, importances)


def _with_values(trials: list[FrozenTrial], spec: Spec | None) -> list[FrozenTrial]:
    """Return copies of trials whose quantiles are values."""
    from optuna.trial import create_trial

    values: dict[str, list[Any]] = {}
    for trial in trials:
        for name, value in trial.params.items():
            values.setdefault(name, []).append(_value(spec, name, value))
    distributions = {name: _distribution(spec, name, values[name]) for name in values if _law(spec, name) is not None}
    return [
        create_trial(
            state=trial.state,
            values=trial.values,
            params={_plain(spec, name): _value(spec, name, value) for name, value in trial.params.items()},
            distributions={
                _plain(spec, name): distributions.get(name, trial.distributions[name]) for name in trial.params
            },
            intermediate_values=trial.intermediate_values,
            system_attrs=trial.system_attrs,
        )
        for trial in trials
    ]


def _law(spec: Spec | None, name: str) -> Reals | Choice | None:
    """Return the law of a parameter of which a quantile was suggested; None of all others."""
    if spec is None or not name.endswith(QUANTILE):
        return None
    parameter = spec.parameters.get(name.removesuffix(QUANTILE))
    return parameter.law if parameter is not None and isinstance(parameter.law, Reals | Choice) else None


def _plain(spec: Spec | None, name: str) -> str:
    return name if _law(spec, name) is None else name.removesuffix(QUANTILE)


def _value(spec: Spec | None, name: str, value: Any) -> Any:
    law = _law(spec, name)
    if law is None:
        return value
    found = law.ppf(value)
    return choices(law.values)[position_of(law.values, found)] if isinstance(law, Choice) else float(found)


def _distribution(spec: Spec | None, name: str, values: list[Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    law = _law(spec, name)
    if isinstance(law, Choice):
        return CategoricalDistribution(choices(law.values))
    low, high = min(values), max(values)
    return FloatDistribution(low, high, log=low > 0 and law is not None and law.shape.startswith("log"))


def _importances(
    study: Study, complete: tuple[FrozenTrial, ...], parameters: tuple[str, ...], place: int
) -> dict[str, dict[str, float]]:
    from optuna import importance

    study, complete = thinned(study, complete, _MOST_FOR_IMPORTANCES)
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


def most_important(readable: Readable, place: int) -> list[str]:
    """Return the parameters that contours are drawn of: the most important ones, by fANOVA, that all trials have."""
    return list(readable.importances[place].get(FANOVA, readable.common))[:_MOST_IN_CONTOURS]


def thinned(study: Study, trials: tuple[FrozenTrial, ...], num: int) -> tuple[Study, tuple[FrozenTrial, ...]]:
    """Return trials, at most `num` of them, spread evenly, and a study of these."""
    import optuna

    if len(trials) <= num:
        return study, trials
    few = optuna.create_study(directions=study.directions, storage=optuna.storages.InMemoryStorage())
    few.add_trials(trials[round(place * (len(trials) - 1) / (num - 1))] for place in range(num))
    return few, tuple(few.get_trials(deepcopy=False))
