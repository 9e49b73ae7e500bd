"""Extended sweeps: points that were chosen in one version of the search space, as a sampler of another one sees them.

Optuna rejects other choices, kinds and scales under a parameter's name, so those of a later version have another one
(`Spec.labels`). Its samplers learn from trials in one space only. They read the study through `InSpace`, which
expresses each trial in the sampler's space, and leaves out the trials beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from sacristan.runs.sweeps.spec.fields import identity
from sacristan.runs.sweeps.spec.laws import Choice, Constant, Integers, Reals
from sacristan.runs.sweeps.spec.parameters import Parameter
from sacristan.runs.sweeps.spec.spec import Spec
from sacristan.runs.sweeps.study.points import QUANTILE, choices, in_order

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["InSpace", "expressed"]

_BISECTIONS = 60


def expressed(spec: Spec, point: Mapping[str, Any]) -> dict[str, tuple[Any, BaseDistribution]] | None:
    """Return what a sampler would have suggested for a point of any version, by label, and the distributions.

    None if the space of the spec does not have the point.
    """
    found = {}
    active = [parameter for parameter in in_order(spec) if parameter.is_active(point)]
    if {parameter.name for parameter in active} != point.keys():
        return None
    for parameter in active:
        value, label = point[parameter.name], spec.labels[parameter.name]
        if isinstance(parameter.law, Constant):
            if identity(parameter.law.value) != identity(value):
                return None
            continue
        suggestion = _suggestion(spec, parameter, value)
        if suggestion is None or not suggestion[2]._contains(suggestion[2].to_internal_repr(suggestion[1])):
            return None
        found[f"{label}{suggestion[0]}"] = suggestion[1:]
    return found


def _suggestion(spec: Spec, parameter: Parameter, value: Any) -> tuple[str, Any, BaseDistribution] | None:
    """Return how the name of a suggestion ends, its value and its distribution."""
    values, law = spec.choices_of(parameter), parameter.law
    if values is not None:
        place = _place(values, value)
        given = choices(values)
        return None if place is None else ("", given[place], CategoricalDistribution(given))
    if isinstance(law, Choice):
        place = _place(law.values, value)
        if place is None or law.probabilities is None:
            return None
        middle = sum(law.probabilities[:place]) + law.probabilities[place] / 2
        return QUANTILE, middle, FloatDistribution(0.0, 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(law, Integers):
        return ("", value, IntDistribution(law.low, law.high)) if isinstance(value, int) else None
    assert isinstance(law, Reals)
    if law.q is None and law.shape in ("uniform", "log_uniform"):
        return "", float(value), FloatDistribution(law.first, law.second, log=law.shape == "log_uniform")
    quantile = _quantile(law, value)
    return None if quantile is None else (QUANTILE, quantile, FloatDistribution(*law.quantiles))


def _place(values: Sequence[Any], value: Any) -> int | None:
    return next((place for place, other in enumerate(values) if identity(other) == identity(value)), None)


def _quantile(law: Reals, value: float) -> float | None:
    """Return a quantile of a value, by bisection; None if the law does not have the value."""
    low, high = law.quantiles
    if not law.ppf(low) <= value <= law.ppf(high):
        return None
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if law.ppf(middle) < value else (low, middle)
    return high if law.q is None or law.ppf(high) == value else None


class InSpace:
    """A storage as a sampler reads it: trials of other versions of the sweep are expressed in its own space.

    What samplers keep for themselves belongs to one version: the state of CMA-ES, and the generations of NSGA-II.

    Args:
        point_of: Returns the point of a trial; None if it is not whole.
    """

    def __init__(
        self,
        storage: BaseStorage,
        spec: Spec,
        version_of: Callable[[FrozenTrial], int],
        point_of: Callable[[FrozenTrial], Mapping[str, Any] | None],
    ) -> None:
        self._storage, self._spec, self._version_of, self._point_of = storage, spec, version_of, point_of
        self._mark = "" if spec.version == 1 else f" (version {spec.version})"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = map(self._seen, self._storage.get_all_trials(study_id, deepcopy, states))
        return [trial for trial in trials if trial is not None]

    def _seen(self, trial: FrozenTrial) -> FrozenTrial | None:
        if self._version_of(trial) == self._spec.version:
            return trial
        point = self._point_of(trial)
        found = None if point is None else expressed(self._spec, point)
        if found is None:
            return None
        seen = create_trial(
            state=trial.state,
            values=trial.values,
            params={name: value for name, (value, _) in found.items()},
            distributions={name: distribution for name, (_, distribution) in found.items()},
            user_attrs=trial.user_attrs,
            system_attrs={name: value for name, value in trial.system_attrs.items() if name.startswith("constraints")},
            intermediate_values=trial.intermediate_values,
        )
        seen.number, seen._trial_id = trial.number, trial._trial_id
        return seen

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        kept = self._storage.get_study_system_attrs(study_id)
        return {name.removesuffix(self._mark): kept[name] for name in kept if name.endswith(self._mark)}

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._storage.set_study_system_attr(study_id, f"{key}{self._mark}", value)
