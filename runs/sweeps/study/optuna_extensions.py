"""Extensions of Optuna: a pruner, two samplers, a journal file, and trials as seen in another version of the space."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from sacristan.observers.record.files import sync_file
from sacristan.observers.record.folders import claimed
from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.spec import Spec
from sacristan.runs.sweeps.spec.distributions import Choice, Constant, Integers, Reals
from sacristan.runs.sweeps.spec.fields import identity
from sacristan.runs.sweeps.spec.parameters import Parameter
from sacristan.runs.sweeps.spec.search import bands
from sacristan.runs.sweeps.study.points import QUANTILE, choices, in_order

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

# ---------------------------------------------------------------------- versions of the search space


_BISECTIONS = 60


def expressed(spec: Spec, point: Mapping[str, Any]) -> dict[str, tuple[Any, BaseDistribution]] | None:
    """Return what a sampler would have suggested for a point of any version, by label; None beyond the space."""
    suggestions = {}
    active = [parameter for parameter in in_order(spec) if parameter.is_active(point)]
    if {parameter.name for parameter in active} != point.keys():
        return None
    for parameter in active:
        value, label = point[parameter.name], spec.labels[parameter.name]
        if isinstance(parameter.distribution, Constant):
            if identity(parameter.distribution.value) != identity(value):
                return None
            continue
        suggestion = _suggestion_of(spec, parameter, value)
        if suggestion is None or not suggestion[2]._contains(suggestion[2].to_internal_repr(suggestion[1])):
            return None
        suggestions[f"{label}{suggestion[0]}"] = suggestion[1:]
    return suggestions


def _suggestion_of(spec: Spec, parameter: Parameter, value: Any) -> tuple[str, Any, BaseDistribution] | None:
    """Return how the name of a suggestion ends, its value and its distribution."""
    values, distribution = spec.choices_of(parameter), parameter.distribution
    if values is not None:
        position = _position(values, value)
        categories = choices(values)
        return None if position is None else ("", categories[position], CategoricalDistribution(categories))
    if isinstance(distribution, Choice):
        position = _position(distribution.values, value)
        if position is None or distribution.probabilities is None:
            return None
        middle = sum(distribution.probabilities[:position]) + distribution.probabilities[position] / 2
        return QUANTILE, middle, FloatDistribution(0.0, 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(distribution, Integers):
        return ("", value, IntDistribution(distribution.low, distribution.high)) if isinstance(value, int) else None
    assert isinstance(distribution, Reals)
    if distribution.q is None and distribution.shape in ("uniform", "log_uniform"):
        return (
            "",
            float(value),
            FloatDistribution(distribution.first, distribution.second, log=distribution.shape == "log_uniform"),
        )
    quantile = _quantile(distribution, value)
    return None if quantile is None else (QUANTILE, quantile, FloatDistribution(*distribution.quantiles))


def _position(values: Sequence[Any], value: Any) -> int | None:
    return next((place for place, other in enumerate(values) if identity(other) == identity(value)), None)


def _quantile(distribution: Reals, value: float) -> float | None:
    """Return a quantile of a value, by bisection; None if the distribution does not have the value."""
    low, high = distribution.quantiles
    if not distribution.ppf(low) <= value <= distribution.ppf(high):
        return None
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if distribution.ppf(middle) < value else (low, middle)
    return high if distribution.q is None or distribution.ppf(high) == value else None


class InSpace:
    """A storage as a sampler reads it: trials of other versions of the sweep are expressed in its own space.

    What samplers keep for themselves belongs to one version: the state of CMA-ES, and the generations of NSGA-II.
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
        suggestions = None if point is None else expressed(self._spec, point)
        if suggestions is None:
            return None
        seen = create_trial(
            state=trial.state,
            values=trial.values,
            params={name: value for name, (value, _) in suggestions.items()},
            distributions={name: distribution for name, (_, distribution) in suggestions.items()},
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


class Hyperband(BasePruner):
    """wandb's hyperband, for one study; its options are `eta`, `strict`, and `min_iter`, or `max_iter` and `s`."""

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


# ---------------------------------------------------------------------- samplers


class _IndependentSampler(BaseSampler):
    """A sampler that gives each parameter by its name alone."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}


class FixedSampler(_IndependentSampler):
    """Suggests given values, by the names of the parameters."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._values[param_name]


class QuasiRandomSampler(_IndependentSampler):
    """Suggests one point of a sequence that fills the space evenly; each name is a dimension.

    Optuna's own counts in the study which point is next, two agents at once may get the same, and the first one is
    random. Here the trial's number is that of the point. A Sobol sequence that is not scrambled begins in a corner.
    """

    def __init__(
        self, names: Sequence[str], number: int, seed: int, qmc_type: str = "sobol", scramble: bool = True
    ) -> None:
        from scipy.stats import qmc

        engine = {"sobol": qmc.Sobol, "halton": qmc.Halton}[qmc_type](len(names), scramble=scramble, seed=seed)
        if number:
            engine.fast_forward(number)
        self._quantiles = dict(zip(names, engine.random(1)[0].tolist(), strict=True))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        quantile = self._quantiles[param_name.removesuffix(QUANTILE)]
        if isinstance(param_distribution, CategoricalDistribution):
            return param_distribution.choices[int(quantile * len(param_distribution.choices))]
        if isinstance(param_distribution, IntDistribution):
            return param_distribution.low + int(quantile * (param_distribution.high - param_distribution.low + 1))
        if not isinstance(param_distribution, FloatDistribution):
            raise TypeError(f"got a {type(param_distribution).__name__}, expected one of Optuna's distributions")
        low, high = param_distribution.low, param_distribution.high
        if param_distribution.log:
            return min(max(low * (high / low) ** quantile, low), high)
        return low + quantile * (high - low)


# ---------------------------------------------------------------------- the journal file


# Optuna's number of the operation that ends a trial; nothing of it may be lost, even to a power cut.
_SET_STATE = 6


class _FileJournal(JournalFileBackend):
    """Optuna's file of JSON lines, which its tools read; a torn last line is cut off before the next one is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        try:
            yield from super().read_logs(log_number_from)
        except ValueError as error:
            raise SweepError(
                f"{self._path}: a line cannot be read ({error}); restore the file, or start another sweep"
            ) from error

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with claimed(self._path.parent), self._path.open("r+b", buffering=0) as stream:
            end = _end_of_last_line(stream)
            stream.truncate(end)
            stream.seek(end)
            if stream.write(lines) < len(lines):
                stream.truncate(end)
                raise OSError(errno.ENOSPC, f"{self._path}: {os.strerror(errno.ENOSPC)}")
            if any(log.get("op_code") == _SET_STATE for log in logs):
                sync_file(stream.fileno())


def _end_of_last_line(stream: RawIOBase) -> int:
    """Return where the last line ends that is whole."""
    end = stream.seek(0, os.SEEK_END)
    while end:
        start = max(end - 4096, 0)
        stream.seek(start)
        line_end = stream.read(end - start).rfind(b"\n")
        if line_end >= 0:
            return start + line_end + 1
        end = start
    return 0


def file_storage(path: Path) -> JournalStorage:
    """Return a study's storage in a file."""
    return JournalStorage(_FileJournal(path))
