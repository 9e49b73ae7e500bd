"""A study as people read it: values instead of quantiles, names of metrics instead of `value`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sacristan.runs.sweeps.spec.laws import Choice, Reals
from sacristan.runs.sweeps.spec.spec import Spec
from sacristan.runs.sweeps.study.points import NUMBER, QUANTILE, VERSION, choices, position_of
from sacristan.runs.sweeps.views.importances import FANOVA, importances_among

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

__all__ = ["Readable", "make_readable", "most_important"]

_MOST_IN_CONTOURS = 4


@dataclasses.dataclass(frozen=True)
class Readable:
    """A study to draw.

    Attributes:
        study: A copy in memory, with values for parameters.
        complete: The trials that ended with values, in order.
        parameters: Names of the searched parameters that some of these trials have.
        common: Those that all of them have.
        importances: For each objective, by the name of the method, the share of each common parameter in the variation
            of its values, estimated from 500 trials at most. Empty where trials are too few, or all values equal.
    """

    study: Study
    metrics: tuple[str, ...]
    complete: tuple[FrozenTrial, ...]
    parameters: tuple[str, ...]
    common: tuple[str, ...]
    importances: tuple[dict[str, dict[str, float]], ...]


def make_readable(study: Study, spec: Spec | None) -> Readable:
    """Copy a study for people to read; the importances take seconds for hundreds of trials.

    Without a spec, quantiles stay quantiles, and metrics are called `value`.
    """
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
    return Readable(copy, metrics, complete, searched, common, importances)


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
    found: dict[str, list[tuple[Any, BaseDistribution]]] = {}
    for point in points:
        for name, pair in point.items():
            found.setdefault(name, []).append(pair)
    distributions = {name: _common(pairs) for name, pairs in found.items()}
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
    found: dict[str, tuple[Any, BaseDistribution]] = {}
    for label, value in trial.params.items():
        name = names.get(label.removesuffix(QUANTILE), label)
        is_quantile = spec is not None and label.endswith(QUANTILE) and name != label
        law = spec.parameters[name].law if spec is not None and is_quantile else None
        if isinstance(law, Reals):
            drawn = float(law.ppf(value))
            found[name] = drawn, FloatDistribution(drawn, drawn, log=drawn > 0 and law.shape.startswith("log"))
        elif isinstance(law, Choice):
            given = choices(law.values)
            found[name] = given[position_of(law.values, law.ppf(value))], CategoricalDistribution(given)
        else:
            found[name] = value, trial.distributions[label]
    return found


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


def most_important(readable: Readable, place: int) -> list[str]:
    """Return the parameters to draw contours of: by fANOVA the four most important of those that all trials have.

    Without importances, the first common parameters are returned.
    """
    return list(readable.importances[place].get(FANOVA, readable.common))[:_MOST_IN_CONTOURS]
