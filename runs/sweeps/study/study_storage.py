"""`StudyStorage`: Optuna's storage of one study as documents of a store, one for each trial.

Optuna's journal would make each agent read what all the others write; here an agent that needs no other trial reads
none, and one that does reads those that are new or unfinished.
"""

from __future__ import annotations

import bisect
import copy
import functools
import json
import math
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState, create_trial

from sacristan.runs.stores import Documents
from sacristan.runs.sweeps.study.points import FIRST_ATTEMPT, NUMBER

# The number of a trial is that of its point. In a further trial of a point, `_AGAIN` times its first attempt is added.
_DIGITS = 9
_AGAIN = 10**_DIGITS
# Trials read within so many seconds count as current: Optuna asks a dozen times for one suggestion.
_FRESH_S = 0.05
_UNFINISHED = [state.name for state in TrialState if not state.is_finished()]
_STUDY_ID = 0
_KIND = "sweep_trials"


class StudyStorage(BaseStorage):
    """The storage of one study, in the documents `sweep_trials`, which may hold many.

    A trial's document holds lists that only grow: parameters, reported values and attributes, of which the last one of
    a name counts. A finished trial is never changed.
    """

    def __init__(self, documents: Documents, name: str) -> None:
        self._documents, self._name = documents, name
        self._trials: dict[int, FrozenTrial] = {}
        self._numbers: list[int] = []  # of the trials, in order
        self._unfinished: set[int] = set()
        self._read_at = -math.inf

    def expire(self) -> None:
        """Ask the store at the next reading, however recently it was asked."""
        self._read_at = -math.inf

    # ------------------------------------------------------------------ the study

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        if study_name != self._name:
            raise ValueError(f"got the study {study_name!r}, expected {self._name!r}: a storage holds one study")
        study = {"directions": [one.name for one in directions]}
        if not self._documents.change(_KIND, self._name, lambda now: now or study):
            raise DuplicatedStudyError(f"the study {self._name!r} exists already")
        return _STUDY_ID

    def delete_study(self, study_id: int) -> None:
        for name in self._documents.read(_KIND, self._name, entries=()):
            self._documents.change(_KIND, name, lambda _: None, self._name)
        self._documents.change(_KIND, self._name, lambda _: None)
        self._trials, self._numbers, self._unfinished = {}, [], set()

    def _study(self) -> dict[str, Any]:
        return self._documents.read(_KIND, names=[self._name])[self._name]

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._set_study_attribute("user", key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._set_study_attribute("system", key, value)

    def _set_study_attribute(self, kind: str, key: str, value: Any) -> None:
        def changed(now: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
            others = [entry for entry in (now or {}).get(kind, ()) if entry[0] != key]
            return now and {**now, kind: [*others, [key, json.dumps(value)]]}

        self._documents.change(_KIND, self._name, changed)

    def get_study_id_from_name(self, study_name: str) -> int:
        if study_name != self._name:
            raise KeyError(study_name)
        self._study()
        return _STUDY_ID

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._name

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return [StudyDirection[name] for name in self._study()["directions"]]

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return _attributes(self._study(), "user")

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return _attributes(self._study(), "system")

    def get_all_studies(self) -> list[FrozenStudy]:
        try:
            document = self._study()
        except KeyError:
            return []
        directions = [StudyDirection[name] for name in document["directions"]]
        user, system = _attributes(document, "user"), _attributes(document, "system")
        return [FrozenStudy(self._name, None, user, system, _STUDY_ID, directions=directions)]

    # ------------------------------------------------------------------ writing trials

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """See Optuna; the number of the point that the template names becomes that of the trial, created once."""
        number = None if template_trial is None else template_trial.user_attrs.get(NUMBER)
        if template_trial is not None and number is not None:
            number += template_trial.user_attrs.get(FIRST_ATTEMPT, 0) * _AGAIN
        fields = _fields(template_trial or create_trial(state=TrialState.RUNNING))
        while True:
            chosen = self._next_number() if number is None else number
            if self._insert(chosen, {"study": self._name, **fields}) or number is not None:
                return chosen

    def _insert(self, number: int, document: dict[str, Any]) -> bool:
        if is_new := self._documents.change(_KIND, _name_of(number), lambda now: now or document, self._name):
            self._keep(_name_of(number), document)
        return is_new

    def _next_number(self) -> int:
        numbers = map(_number, self._documents.read(_KIND, self._name, entries=()))
        return max((number for number in numbers if number < _AGAIN), default=-1) + 1

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        self._append(
            trial_id, "parameters", [param_name, float(param_value_internal), distribution_to_json(distribution)]
        )

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        fields: dict[str, Any] = {"state": state.name}
        if values is not None:
            fields["values"] = [float(value) for value in values]
        if state == TrialState.RUNNING:
            fields["start"] = datetime.now().isoformat()
            return self._change(trial_id, lambda now: {**now, **fields}, ["WAITING"])
        if state.is_finished():
            fields["complete"] = datetime.now().isoformat()
        return self._change(trial_id, lambda now: {**now, **fields})

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        self._append(trial_id, "reports", [int(step), float(intermediate_value)])

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._append(trial_id, "user", [key, json.dumps(value)])

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._append(trial_id, "system", [key, json.dumps(value)])

    def _append(self, trial_id: int, name: str, entry: list[Any]) -> None:
        self._change(trial_id, lambda now: {**now, name: [*now[name], entry]})

    def _change(
        self,
        trial_id: int,
        change: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        states: Sequence[str] = tuple(_UNFINISHED),
    ) -> bool:
        """Change a trial that is in one of some states; return whether it was. Raises errors as Optuna expects."""
        changed: Mapping[str, Any] | None = None

        def within_states(now: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
            nonlocal changed
            changed = None if now is None or now["state"] not in states else change(now)
            return now if changed is None else changed

        self._documents.change(_KIND, _name_of(trial_id), within_states, self._name)
        if changed is not None:
            self._keep(_name_of(trial_id), changed)
            return True
        self.check_trial_is_updatable(trial_id, self.get_trial(trial_id).state)
        return False

    # ------------------------------------------------------------------ reading trials

    def get_trial(self, trial_id: int) -> FrozenTrial:
        trial = self._trials.get(trial_id)
        if trial is None or not trial.state.is_finished():
            found = self._documents.read(_KIND, self._name, [_name_of(trial_id)])
            if not found:
                raise KeyError(f"the study {self._name} has no trial {trial_id}")
            self._keep(*found.popitem())
        return self._trials[trial_id]

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        return trial_number

    def get_trial_number_from_id(self, trial_id: int) -> int:
        return trial_id

    def get_n_trials(self, study_id: int, state: tuple[TrialState, ...] | TrialState | None = None) -> int:
        states = (state,) if isinstance(state, TrialState) else state
        return len(self._documents.read(_KIND, self._name, where=self._in_states(states), entries=()))

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        if states is not None and not any(state in states for state in TrialState if state.is_finished()):
            # Few, for which the others need not be read.
            found = self._documents.read(_KIND, self._name, where=self._in_states(states))
            return [_trial(name, document) for name, document in found.items()]
        self._read()
        trials = [self._trials[number] for number in self._numbers]
        if states is not None:
            trials = [trial for trial in trials if trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def _in_states(self, states: Container[TrialState] | None) -> dict[str, list[str]]:
        study = {"study": [self._name]}
        return study if states is None else {**study, "state": [each.name for each in TrialState if each in states]}

    def _read(self) -> None:
        """Read the trials that are new since the last time, and those that were unfinished then."""
        asked_at = time.monotonic()
        if asked_at - self._read_at < _FRESH_S:
            return
        num = bisect.bisect_left(self._numbers, _AGAIN)
        last = self._numbers[num - 1] if num else -1
        # A lower number may have no trial yet: its agent has claimed the point, and is about to write it.
        missing = set() if num == last + 1 else set(range(last)).difference(self._numbers)
        changing = [_name_of(number) for number in sorted(missing | self._unfinished)]
        found = self._documents.read(_KIND, self._name, changing, after=_name_of(last) if num else "")
        for name, document in found.items():
            self._keep(name, document)
        self._read_at = asked_at

    def _keep(self, name: str, document: Mapping[str, Any]) -> None:
        trial = _trial(name, document)
        if trial.number not in self._trials:
            bisect.insort(self._numbers, trial.number)
        self._trials[trial.number] = trial
        (self._unfinished.discard if trial.state.is_finished() else self._unfinished.add)(trial.number)


def _name_of(number: int) -> str:
    """Return the name of a trial's document; those of further trials of points follow all others."""
    attempt, point = divmod(number, _AGAIN)
    return f"r{point:0{_DIGITS}d}.{attempt}" if attempt else f"{point:0{_DIGITS}d}"


def _number(name: str) -> int:
    point, _, attempt = name.removeprefix("r").partition(".")
    return int(point) + int(attempt or 0) * _AGAIN


def _fields(trial: FrozenTrial) -> dict[str, Any]:
    parameters = [
        [name, float(distribution.to_internal_repr(trial.params[name])), distribution_to_json(distribution)]
        for name, distribution in trial.distributions.items()
    ]
    return {
        "state": trial.state.name,
        "start": _text(trial.datetime_start),
        "complete": _text(trial.datetime_complete),
        "values": None if trial.values is None else [float(value) for value in trial.values],
        "parameters": parameters,
        "reports": [[int(step), float(value)] for step, value in trial.intermediate_values.items()],
        "user": [[name, json.dumps(value)] for name, value in trial.user_attrs.items()],
        "system": [[name, json.dumps(value)] for name, value in trial.system_attrs.items()],
    }


def _trial(name: str, document: Mapping[str, Any]) -> FrozenTrial:
    distributions = {name: _distribution(text) for name, _, text in document["parameters"]}
    return FrozenTrial(
        number=_number(name),
        trial_id=_number(name),
        state=TrialState[document["state"]],
        value=None,
        values=document["values"],
        datetime_start=_time(document["start"]),
        datetime_complete=_time(document["complete"]),
        params={name: distributions[name].to_external_repr(value) for name, value, _ in document["parameters"]},
        distributions=distributions,
        user_attrs=_attributes(document, "user"),
        system_attrs=_attributes(document, "system"),
        intermediate_values=dict(document["reports"]),
    )


_distribution = functools.lru_cache(maxsize=1024)(json_to_distribution)


def _attributes(document: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in document.get(kind, ())}


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


# ---------------------------------------------------------------------- studies of earlier versions


class _OldJournal(BaseJournalBackend):
    """The journal that earlier versions kept in MongoDB for a study, for reading: a document for each entry."""

    def __init__(self, documents: Documents, name: str) -> None:
        self._documents, self._name = documents, name

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        last = f"{log_number_from - 1:0{_DIGITS}d}" if log_number_from else ""
        for entry in self._documents.read("sweep_journal", self._name, after=last).values():
            yield json.loads(entry["entry"])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        raise NotImplementedError(f"the journal of sweep {self._name} is of an earlier version, and only read")


def journal_storage(documents: Documents, name: str) -> BaseStorage | None:
    """Return the study that an earlier version kept as a journal, for reading; None if there is none."""
    if name not in documents.read("sweep_journal", names=[name]):
        return None
    return JournalStorage(_OldJournal(documents, name))


def convert_journal(journal: BaseStorage, storage: StudyStorage, name: str) -> None:
    """Copy a study of an earlier version; several agents may do so at once, and each of them may be killed."""
    try:
        study_id = journal.get_study_id_from_name(name)
    except KeyError:
        return  # it was about to be created
    for trial in journal.get_all_trials(study_id, deepcopy=False):
        if NUMBER in trial.user_attrs:
            storage.create_new_trial(_STUDY_ID, trial)
    for key, value in journal.get_study_system_attrs(study_id).items():
        storage.set_study_system_attr(_STUDY_ID, key, value)
    # The study exists once it is whole.
    storage.create_new_study(journal.get_study_directions(study_id), name)
