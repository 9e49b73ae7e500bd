"""`StudyView`: a study as people read it, with values instead of quantiles and names of metrics instead of `value`.

Importances are the share of each setting in the variation of a result, over the trials of a study or any runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sacristan.runs.errors import needing_extra
from sacristan.runs.sweeps.spec import Spec
from sacristan.runs.sweeps.spec.distributions import Choice, Reals
from sacristan.runs.sweeps.study.points import NUMBER, QUANTILE, VERSION, choices, position_of
from sacristan.runs.sweeps.study.samplers import without_experimental_warnings

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

_MOST_IN_CONTOURS = 4


@dataclasses.dataclass(frozen=True)
class StudyView:
    """A study to draw."""

    study: Study  # a copy in memory, with values for parameters
    metrics: tuple[str, ...]
    complete: tuple[FrozenTrial, ...]  # the trials that ended with values, in order
    parameters: tuple[str, ...]  # names of the searched parameters that some of these trials have
    common: tuple[str, ...]  # those that all of them have
    # For each objective and method, the share of each common parameter in the variation of its values. Empty where
    # trials are too few, or all values equal.
    importances: tuple[dict[str, dict[str, float]], ...]


def make_study_view(study: Study, spec: Spec | None) -> StudyView:
    """Copy a study for people to read, in seconds for hundreds of trials; without a spec, quantiles stay quantiles."""
    import optuna
    from optuna.trial import TrialState

    # In the order of their points: in the study, the trials of parallel agents have other numbers.
    trials = sorted(study.get_trials(deepcopy=False), key=lambda trial: trial.user_attrs.get(NUMBER, trial.number))
    copy = optuna.create_study(directions=study.directions, storage=optuna.storages.InMemoryStorage())
    copy.add_trials(_with_values(trials, spec))
    complete = tuple(copy.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    names = dict.fromkeys(name for trial in complete for name in trial.params)
    searched = tuple(name for name in names if not _is_fixed(name, complete))
    common = tuple(name for name in searched if all(name in trial.params for trial in complete))
    metrics = _metrics(study, spec)
    importances = tuple(importances_among(copy, complete, common, place) for place in range(len(metrics)))
    return StudyView(copy, metrics, complete, searched, common, importances)


def _metrics(study: Study, spec: Spec | None) -> tuple[str, ...]:
    names = study.metric_names or (spec.objective_names if spec else ())
    num = len(study.directions)
    if len(names) == num:
        return tuple(names)
    return ("value",) if num == 1 else tuple(f"value {number}" for number in range(num))


def _is_fixed(name: str, trials: tuple[FrozenTrial, ...]) -> bool:
    return any(trial.distributions[name].single() for trial in trials if name in trial.params)


def _with_values(trials: list[FrozenTrial], spec: Spec | None) -> list[FrozenTrial]:
    """Return copies of trials with values instead of quantiles, and one distribution for each parameter."""
    from optuna.trial import create_trial

    points = [_values(trial, spec) for trial in trials]
    pairs_of: dict[str, list[tuple[Any, BaseDistribution]]] = {}
    for point in points:
        for name, pair in point.items():
            pairs_of.setdefault(name, []).append(pair)
    distributions = {name: _common(pairs) for name, pairs in pairs_of.items()}
    return [
        create_trial(
            state=trial.state,
            values=trial.values,
            params={name: value for name, (value, _) in point.items()},
            distributions={name: distributions[name] for name in point},
            intermediate_values=trial.intermediate_values,
            system_attrs=trial.system_attrs,
        )
        for trial, point in zip(trials, points, strict=True)
    ]


def _values(trial: FrozenTrial, spec: Spec | None) -> dict[str, tuple[Any, BaseDistribution]]:
    """Return the values of a trial and their distributions by parameter."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    spec = spec and spec.at(trial.user_attrs.get(VERSION, 1))
    names = {} if spec is None else {label: name for name, label in spec.labels.items() if name in spec.parameters}
    values: dict[str, tuple[Any, BaseDistribution]] = {}
    for label, value in trial.params.items():
        name = names.get(label.removesuffix(QUANTILE), label)
        is_quantile = spec is not None and label.endswith(QUANTILE) and name != label
        distribution = spec.parameters[name].distribution if spec is not None and is_quantile else None
        if isinstance(distribution, Reals):
            drawn = float(distribution.ppf(value))
            values[name] = (
                drawn,
                FloatDistribution(drawn, drawn, log=drawn > 0 and distribution.shape.startswith("log")),
            )
        elif isinstance(distribution, Choice):
            categories = choices(distribution.values)
            values[name] = (
                categories[position_of(distribution.values, distribution.ppf(value))],
                CategoricalDistribution(categories),
            )
        else:
            values[name] = value, trial.distributions[label]
    return values


def _common(pairs: list[tuple[Any, BaseDistribution]]) -> BaseDistribution:
    """Return one distribution for all values of a parameter, whose own ones differ if the sweep was extended."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    first = pairs[0][1]
    if all(one == first for _, one in pairs):
        return first
    numbers = [one for _, one in pairs if isinstance(one, FloatDistribution | IntDistribution)]
    if len(numbers) == len(pairs):
        low, high = min(one.low for one in numbers), max(one.high for one in numbers)
        if all(isinstance(one, IntDistribution) for one in numbers):
            return IntDistribution(int(low), int(high))
        return FloatDistribution(low, high, log=low > 0 and any(one.log for one in numbers))
    listed = [one.choices if isinstance(one, CategoricalDistribution) else (value,) for value, one in pairs]
    return CategoricalDistribution(list({repr(value): value for some in listed for value in some}.values()))


def most_important(view: StudyView, place: int) -> list[str]:
    """Return the parameters to draw contours of: the four most important of those that all trials have."""
    return list(view.importances[place].get(FANOVA, view.common))[:_MOST_IN_CONTOURS]


# ---------------------------------------------------------------------- importances


# Optuna's fANOVA takes 15 ms for each trial.
MOST_RUNS = 500
# Numbers whose greatest is so many times the least are compared by their logarithms.
_WIDE = 50
FANOVA, IMPURITY = "fANOVA", "mean decrease in impurity"


def importances_over(
    settings: Mapping[str, Sequence[float | str]], results: Sequence[float]
) -> dict[str, dict[str, float]]:
    """Estimate the share of each setting in the variation of a finite result, from 500 runs at most, by method."""
    with needing_extra("sweeps", "importances"), without_experimental_warnings():
        import optuna

        distributions = {name: _distribution(values) for name, values in settings.items()}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
        study.add_trials(
            optuna.trial.create_trial(
                params={name: values[place] for name, values in settings.items()},
                distributions=distributions,
                value=result,
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
    """Estimate the share of each parameter in the variation of an objective; each trial has all of the parameters."""
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
