"""`Study`: the points of a sweep and their outcomes, in an Optuna study that many agents share.

A point is one trial of Optuna, however many agents die over it: the first agent that takes the point creates the trial,
which stays RUNNING until an agent notes its values. Claims (`home.py`) hand out the numbers of points; Optuna's own
numbers follow no order when several agents work at once.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sacristan.runs.errors import SweepError, needing_extra
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.spec import Spec, spec_of
from sacristan.runs.sweeps.spec.search import violations
from sacristan.runs.sweeps.study.home import Home, shared_storage
from sacristan.runs.sweeps.study.points import FIRST_ATTEMPT, NUMBER, VERSION, suggest
from sacristan.runs.sweeps.study.samplers import draws_alone, make_pruner, make_sampler

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

__all__ = ["Point", "Study", "SweepProgress"]

# The attribute of a trial that counts how often its agent was interrupted, which is no fault of the point.
_GIVEN_BACK = "given_back"


@dataclasses.dataclass(frozen=True)
class Point:
    """A point that was tried, is being tried, or is about to be."""

    number: int
    parameters: dict[str, Any]
    state: str  # RUNNING, COMPLETE, PRUNED or FAIL
    values: tuple[float, ...]  # the values of the objectives; empty as long as they are unknown
    reports: dict[int, float]  # values of the first objective that were reported, by step
    # By how much it breaks each constraint, by the constraint's text; 0 or below where it does not.
    excess: dict[str, float]
    duration_s: float | None
    notes: dict[str, Any]  # `runs`, the uids; `reason`, why it failed; `same_as`, a point with these parameters
    version: int = 1
    first_attempt: int = 0  # the attempt that counts as the first: above 0 if it failed earlier, and runs again

    @property
    def is_feasible(self) -> bool:
        """True if it violates no constraint."""
        return all(excess <= 0 for excess in self.excess.values())

    def num_kills(self, attempt: int) -> int:
        """Return how many attempts before this one were killed, rather than interrupted."""
        return attempt - self.first_attempt - int(self.notes.get(_GIVEN_BACK, 0))

    @property
    def is_finished(self) -> bool:
        """True if nothing is left to do for it."""
        return self.state != "RUNNING"


@dataclasses.dataclass(frozen=True)
class SweepProgress:
    """Progress of a sweep: the number of points ever taken, the unfinished ones, and how many have ended, by state."""

    num_taken: int
    unfinished: frozenset[int]
    counts: dict[str, int]


class Study:
    """The study of a sweep, whose definition and spec are those of the last `renew`.

    With `is_read_only` nothing is written, not even that it is opened. `draws_alone` means that points are chosen
    without reading others.
    """

    def __init__(
        self,
        home: Home,
        definition: Definition,
        spec: Spec,
        *,
        is_read_only: bool = False,
        storage: BaseStorage | None = None,
    ) -> None:
        with needing_extra("sweeps", "a sweep"):
            import optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._home, self.definition, self.spec = home, definition, spec
        self.draws_alone = draws_alone(spec)
        if storage is None:
            own = definition.storage
            storage = shared_storage(own) if own else home.storage(is_read_only=is_read_only)
        self._storage = storage
        # A sweep that judges nothing has points all the same.
        directions: list[Any] = [objective.goal for objective in spec.objectives] or ["minimize"]
        common: dict[str, Any] = {
            "storage": self._storage,
            "study_name": definition.id,
            "sampler": optuna.samplers.RandomSampler(0),  # the right one is made for each point
            "pruner": make_pruner(spec) or optuna.pruners.NopPruner(),
        }
        self.optuna: optuna.Study = (
            _loaded(common, home)
            if is_read_only
            else optuna.create_study(**common, directions=directions, load_if_exists=True)
        )
        self._study_id = self._storage.get_study_id_from_name(definition.id)
        # The storage's id of the trial of each point that was read or created.
        self._ids: dict[int, int] = {}
        # What was seen of the points: which are unfinished, and how the others ended.
        self._read_numbers: set[int] = set()
        self._unfinished: set[int] = set()
        self._counts: collections.Counter[str] = collections.Counter()
        self._complete: dict[str, int] = {}
        # What was chosen for each point, and the points that have ended, which do not change.
        self._chosen: dict[int, dict[str, Any]] = {}
        self._ended: dict[int, Point] = {}

    @property
    def prunes(self) -> bool:
        return self.spec.stopping is not None

    def renew(self) -> bool:
        """Read the definition again, which another process may have extended; return whether it differs."""
        import optuna

        definition = self._home.definition()
        if definition == self.definition:
            return False
        self.definition, self.spec = definition, spec_of(definition)
        self.draws_alone = draws_alone(self.spec)
        self.optuna.pruner = make_pruner(self.spec) or optuna.pruners.NopPruner()
        return True

    def points(self) -> dict[int, Point]:
        """Return all points that were ever taken, by their numbers."""
        self.expire()
        return {number: self._point(trial) for number, trial in sorted(self._read().items())}

    def expire(self) -> None:
        """Let the next read return what other agents have written by now; without this it may be a moment behind."""
        self._home.expire()

    def progress(self) -> SweepProgress:
        """Read what other agents have written, for the methods below as well, and return the progress of the sweep."""
        self._read()
        return SweepProgress(len(self._read_numbers), frozenset(self._unfinished), dict(self._counts))

    def num_taken(self) -> int:
        """Return how many points were ever taken, without reading them if each has one trial."""
        if self.definition.has_retried:
            self._read()
            return len(self._read_numbers)
        return self._storage.get_n_trials(self._study_id)

    def running(self) -> list[int]:
        """Return the numbers of the points that are not finished, without reading the others."""
        from optuna.trial import TrialState

        trials = self.optuna.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return list(self._known(trials))

    def has(self, number: int) -> bool:
        """Tell whether a point was taken, as far as was read."""
        return number in self._ids

    @property
    def end(self) -> int:
        """The number after the last point that was taken, as far as was read."""
        return max(self._read_numbers, default=-1) + 1

    def point(self, number: int) -> Point | None:
        """Return a point as it is now; None if nobody had taken it, as far as was read."""
        return self._point(self._trial(number)) if self.has(number) else None

    def finished_as(self, point: Point) -> Point | None:
        """Return a complete point with the same parameters, whose values hold for both; None if none is known here."""
        number = self._complete.get(_key(point.parameters))
        return None if number is None or number == point.number else self.point(number)

    def take(self, number: int) -> Point:
        """Return a point with its parameters, which are chosen now unless another agent has chosen them.

        The caller holds its claim, and has read the study since then, so that what an earlier agent chose is known.
        """
        import optuna

        if not self.has(number):
            self._add(number)
        trial = self._trial(number)
        if self._parameters(trial) is None:
            from sacristan.runs.sweeps.study.optuna_extensions import InSpace

            spec = self._spec_of(trial)
            # A copy for each: a study remembers what it has seen of the trials until its next `ask`, its copy does not.
            fresh = copy.copy(self.optuna)
            if self.spec.version > 1:
                fresh._storage = InSpace(self._storage, spec, _version, self._parameters)  # type: ignore[assignment]
            fresh.sampler = make_sampler(spec, self.definition.seed, number)
            suggest(spec, optuna.trial.Trial(fresh, self._ids[number]))
            trial = self._trial(number)
        return self._point(trial)

    def retry(self, number: int, attempt: int) -> None:
        """Let agents run a failed point again, as a further trial, from the attempt after `attempt` on."""
        from optuna.trial import TrialState, create_trial

        failed = self._trial(number)
        kept = {name: failed.user_attrs[name] for name in (NUMBER, VERSION) if name in failed.user_attrs}
        trial = create_trial(
            state=TrialState.RUNNING,
            params=failed.params,
            distributions=failed.distributions,
            user_attrs={**kept, FIRST_ATTEMPT: attempt + 1},
        )
        self._storage.create_new_trial(self._study_id, trial)

    def report(self, number: int, step: int, value: float) -> bool:
        """Store a reported value of the first objective, and return whether early termination ends the point."""
        self._storage.set_trial_intermediate_value(self._ids[number], step, value)
        return self.prunes and bool(self.optuna.pruner.prune(self.optuna, self._trial(number)))

    def finish_as(self, number: int, same: Point) -> None:
        """Complete a point without running it, as the complete one with its parameters, noted as `same_as`."""
        self._finish(number, "COMPLETE", same.values, same.excess, {"same_as": same.number})

    def give_back(self, number: int) -> None:
        """Note that the agent of an unfinished point was interrupted, so that this attempt does not count as a kill."""
        from optuna.exceptions import UpdateFinishedTrialError

        trial = self._trial(number)
        with contextlib.suppress(UpdateFinishedTrialError):
            times = int(trial.user_attrs.get(_GIVEN_BACK, 0)) + 1
            self._storage.set_trial_user_attr(self._ids[number], _GIVEN_BACK, times)

    def finish(
        self,
        number: int,
        state: str,
        values: Sequence[float] = (),
        measured: Mapping[str, float] | None = None,
        **notes: Any,
    ) -> None:
        """End a point as COMPLETE, PRUNED or FAIL, unless it is finished; `measured` has the constrained metrics."""
        excess = {} if measured is None else violations(self.spec.constraints, measured)
        self._finish(number, state, values, excess, notes)

    def _finish(
        self, number: int, state: str, values: Sequence[float], excess: Mapping[str, float], notes: Mapping[str, Any]
    ) -> None:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        trial_id = self._ids[number]
        try:
            for text, value in excess.items():
                self._storage.set_trial_system_attr(trial_id, f"constraints:{text}", value)
            for name, note in notes.items():
                self._storage.set_trial_user_attr(trial_id, name, note)
            results = list(values) or ([0.0] if state == "COMPLETE" else None)
            self._storage.set_trial_state_values(trial_id, TrialState[state], results)
        except UpdateFinishedTrialError:
            return  # another agent saw it through

    def _read(self) -> dict[int, FrozenTrial]:
        """Read what is new in the study; return the trials by the numbers of their points."""
        trials = self._known(self.optuna.get_trials(deepcopy=False))
        self._unfinished |= trials.keys() - self._read_numbers
        self._read_numbers |= trials.keys()
        for number in list(self._unfinished):
            trial = trials[number]
            if trial.state.is_finished():
                self._unfinished.remove(number)
                self._counts[trial.state.name] += 1
                if trial.state.name == "COMPLETE":
                    self._complete.setdefault(_key(self._parameters(trial) or {}), number)
        return trials

    def _known(self, trials: Iterable[FrozenTrial]) -> dict[int, FrozenTrial]:
        """Return trials by the numbers of their points, the last one of each, and note which ones they are."""
        trial_of: dict[int, FrozenTrial] = {}
        for trial in trials:
            number = trial.user_attrs.get(NUMBER)
            if number is not None and (number not in trial_of or _first(trial_of[number]) < _first(trial)):
                trial_of[number] = trial
        for number, trial in trial_of.items():
            if self._ids.get(number, trial._trial_id) != trial._trial_id:  # it had failed, and runs again
                self._ended.pop(number, None)
                if number in self._read_numbers - self._unfinished:
                    self._counts -= collections.Counter(["FAIL"])
                    self._unfinished.add(number)
            self._ids[number] = trial._trial_id
        return trial_of

    def _trial(self, number: int) -> FrozenTrial:
        return self._storage.get_trial(self._ids[number])

    def _add(self, number: int) -> None:
        """Add a trial for a point, in one operation, so that none is left without its number."""
        from optuna.trial import TrialState, create_trial

        drawn: dict[str, Any] = self._drawn(number) if self.draws_alone else {}
        version = self.spec.for_point(number).version
        notes = {NUMBER: number, **({VERSION: version} if version > 1 else {})}
        trial = create_trial(state=TrialState.RUNNING, user_attrs=notes, **drawn)
        self._ids[number] = self._storage.create_new_trial(self._study_id, trial)

    def _drawn(self, number: int) -> dict[str, Any]:
        """Return the parameters of a point, and their distributions, as the sampler chooses them in an empty study."""
        import optuna

        spec = self.spec.for_point(number)
        study = optuna.create_study(sampler=make_sampler(spec, self.definition.seed, number))
        suggest(spec, study.ask())
        (trial,) = study.get_trials(deepcopy=False)
        return {"params": trial.params, "distributions": trial.distributions}

    def _parameters(self, trial: FrozenTrial) -> dict[str, Any] | None:
        """Return the settings of a trial; None if they are not all chosen, because its agent died over that."""
        number = trial.user_attrs[NUMBER]
        if number not in self._chosen:
            try:
                spec = self._spec_of(trial)
                self._chosen[number] = suggest(spec, trial)  # type: ignore[arg-type]  # which has what was chosen
            except ValueError:
                return None
        return self._chosen[number]

    def _spec_of(self, trial: FrozenTrial) -> Spec:
        """Return the spec of the version that a trial was chosen in."""
        if _version(trial) > self.spec.version:
            self.renew()
        return self.spec.at(_version(trial))

    def _point(self, trial: FrozenTrial) -> Point:
        number = trial.user_attrs[NUMBER]
        if number in self._ended:
            return self._ended[number]
        point = Point(
            number,
            dict(self._parameters(trial) or {}),
            trial.state.name,
            tuple(trial.values) if trial.values is not None else (),
            dict(trial.intermediate_values),
            dict(trial.constraints),
            trial.duration.total_seconds() if trial.duration is not None else None,
            {name: value for name, value in trial.user_attrs.items() if name not in (NUMBER, VERSION, FIRST_ATTEMPT)},
            _version(trial),
            _first(trial),
        )
        if point.is_finished:
            self._ended[number] = point
        return point


def _version(trial: FrozenTrial) -> int:
    return int(trial.user_attrs.get(VERSION, 1))


def _first(trial: FrozenTrial) -> int:
    return int(trial.user_attrs.get(FIRST_ATTEMPT, 0))


def _loaded(options: Mapping[str, Any], home: Home) -> optuna.Study:
    import optuna

    try:
        return optuna.load_study(**options)
    except KeyError as error:
        raise SweepError(f"{home.where}: no agent has opened its study yet") from error


def _key(parameters: Mapping[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True)
