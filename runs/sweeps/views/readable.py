"""A study as people read it: values instead of quantiles, names of metrics instead of `value`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from runs.sweeps.spec.laws import Choice, Reals
from runs.sweeps.spec.spec import Spec
from runs.sweeps.study.points import QUANTILE, choices, position_of
from runs.sweeps.views.importances import FANOVA, importances_among

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
        metrics: The name of each objective.
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

    Args:
        study: The study.
        spec: Its spec; without it, quantiles stay quantiles, and metrics are called `value`.
    """
    import optuna
    from optuna.trial import TrialState

    # In the order of their points: in the study, the trials of parallel agents have other numbers.
    trials = sorted(study.get_trials(deepcopy=False), key=lambda trial: trial.user_attrs.get("point", trial.number))
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
    """Return copies of trials with values instead of quantiles."""
    from optuna.trial import create_trial

    laws = {name: _law(spec, name) for trial in trials for name in trial.params}
    values: dict[str, list[Any]] = {name: [] for name in laws}
    for trial in trials:
        for name, value in trial.params.items():
            values[name].append(_value(laws[name], value))
    distributions = {name: _distribution(law, values[name]) for name, law in laws.items() if law is not None}
    plain = {name: name if law is None else name.removesuffix(QUANTILE) for name, law in laws.items()}
    return [
        create_trial(
            state=trial.state,
            values=trial.values,
            params={plain[name]: _value(laws[name], value) for name, value in trial.params.items()},
            distributions={plain[name]: distributions.get(name, old) for name, old in trial.distributions.items()},
            intermediate_values=trial.intermediate_values,
            system_attrs=trial.system_attrs,
        )
        for trial in trials
    ]


def _law(spec: Spec | None, name: str) -> Reals | Choice | None:
    """Return the law of a parameter whose quantile was suggested; None for all others."""
    if spec is None or not name.endswith(QUANTILE):
        return None
    parameter = spec.parameters.get(name.removesuffix(QUANTILE))
    return parameter.law if parameter is not None and isinstance(parameter.law, Reals | Choice) else None


def _value(law: Reals | Choice | None, value: Any) -> Any:
    if law is None:
        return value
    drawn = law.ppf(value)
    return choices(law.values)[position_of(law.values, drawn)] if isinstance(law, Choice) else float(drawn)


def _distribution(law: Reals | Choice, values: list[Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(law, Choice):
        return CategoricalDistribution(choices(law.values))
    low, high = min(values), max(values)
    return FloatDistribution(low, high, log=low > 0 and law.shape.startswith("log"))


def most_important(readable: Readable, place: int) -> list[str]:
    """Return the parameters to draw contours of: by fANOVA the four most important of those that all trials have.

    Args:
        readable: The study.
        place: Position of the objective; without importances, the first common parameters are returned.
    """
    return list(readable.importances[place].get(FANOVA, readable.common))[:_MOST_IN_CONTOURS]
