"""`MongoStorage`: Optuna's storage of one study in MongoDB, a document for each trial.

Optuna has no storage for MongoDB. Its journal would make each agent read what all the others write; here an agent that
needs no other trial reads none, and one that does reads those that are new or unfinished.
"""

from __future__ import annotations

import bisect
import copy
import functools
import json
import math
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState, create_trial
from pymongo import ReturnDocument
from pymongo.collection import Collection

from sacristan.observers.mongo.layout import Collections
from sacristan.runs.sweeps.study.outages import Outages
from sacristan.runs.sweeps.study.points import FIRST_ATTEMPT, NUMBER

__all__ = ["MongoStorage", "convert_journal", "journal_storage"]

# The number of a trial is that of its point. In a further trial of a point, `_AGAIN` times its first attempt is added.
_DIGITS = 9
_AGAIN = 10**_DIGITS
# Trials read within so many seconds count as current: Optuna asks a dozen times for one suggestion.
_FRESH_S = 0.05
_UNFINISHED = [state.name for state in TrialState if not state.is_finished()]
_STUDY_ID = 0


class MongoStorage(BaseStorage):
    """The storage of one study, in `sweep_trials`, which may hold many.

    A trial's document holds lists that only grow: parameters, reported values and attributes, of which the last one of
    a name counts. A finished trial is never changed.
    """

    def __init__(self, collections: Collections, name: str, outages: Outages) -> None:
        self._collections, self._documents = collections, collections.sweep_trials
        self._name = name
        self._outages = outages
        self._trials: dict[int, FrozenTrial] = {}
        self._numbers: list[int] = []  # of the trials, in order
        self._unfinished: set[int] = set()
        self._read_at = -math.inf

    def _confirmed(self) -> Collection[dict[str, Any]]:
        """Return the collection for writes that others rely on; call it within questions, as it asks the server."""
        return self._collections.confirmed.sweep_trials

    def expire(self) -> None:
        """Ask the database at the next reading, however recently it was asked."""
        self._read_at = -math.inf

    # ------------------------------------------------------------------ the study

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        if study_name != self._name:
            raise ValueError(f"got the study {study_name!r}, expected {self._name!r}: a storage holds one study")
        study = {"_id": self._name, "directions": [one.name for one in directions]}
        if not self._outages.insert(self._confirmed, study):
            raise DuplicatedStudyError(f"the study {self._name!r} exists already")
        self._outages.ask(lambda: self._documents.create_index([("study", 1), ("state", 1)]))
        return _STUDY_ID

    def delete_study(self, study_id: int) -> None:
        self._outages.ask(lambda: self._confirmed().delete_many({"$or": [{"_id": self._name}, self._of_trials()]}))
        self._trials, self._numbers, self._unfinished = {}, [], set()

    def _study(self) -> dict[str, Any]:
        document = self._outages.ask(lambda: self._documents.find_one({"_id": self._name}))
        if document is None:
            raise KeyError(self._name)
        return document

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._set_study_attribute("user", key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._set_study_attribute("system", key, value)

    def _set_study_attribute(self, kind: str, key: str, value: Any) -> None:
        # A pipeline replaces the entry of that name in one step, so that the list does not grow.
        others = {"$filter": {"input": {"$ifNull": [f"${kind}", []]}, "cond": {"$ne": [{"$first": "$$this"}, key]}}}
        entry = [{"$literal": key}, {"$literal": json.dumps(value)}]
        change = [{"$set": {kind: {"$concatArrays": [others, [entry]]}}}]
        self._outages.ask(lambda: self._confirmed().update_one({"_id": self._name}, change))

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
            if self._insert({"_id": self._id(chosen), "study": self._name, **fields}) or number is not None:
                return chosen

    def _insert(self, document: dict[str, Any]) -> bool:
        if is_new := self._outages.insert(self._confirmed, document):
            self._keep(document)
        return is_new

    def _next_number(self) -> int:
        wanted = {**self._of_trials(), "_id": {"$lt": self._further}}
        last = self._outages.ask(lambda: self._documents.find_one(wanted, {"_id": 1}, sort=[("_id", -1)]))
        return 0 if last is None else _number(last) + 1

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        entry = [param_name, float(param_value_internal), distribution_to_json(distribution)]
        self._change(trial_id, {"$push": {"parameters": entry}})

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        fields: dict[str, Any] = {"state": state.name}
        if values is not None:
            fields["values"] = [float(value) for value in values]
        if state == TrialState.RUNNING:
            fields["start"] = datetime.now().isoformat()
            return self._change(trial_id, {"$set": fields}, ["WAITING"])
        if state.is_finished():
            fields["complete"] = datetime.now().isoformat()
        return self._change(trial_id, {"$set": fields})

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        self._change(trial_id, {"$push": {"reports": [int(step), float(intermediate_value)]}})

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._change(trial_id, {"$push": {"user": [key, json.dumps(value)]}})

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._change(trial_id, {"$push": {"system": [key, json.dumps(value)]}})

    def _change(self, trial_id: int, change: Mapping[str, Any], states: Sequence[str] = tuple(_UNFINISHED)) -> bool:
        """Change a trial that is in one of some states; return whether it was. Raises errors as Optuna expects."""
        wanted = {"_id": self._id(trial_id), "state": {"$in": list(states)}}
        after = ReturnDocument.AFTER
        changed = self._outages.ask(
            lambda: self._confirmed().find_one_and_update(wanted, change, return_document=after)
        )
        if changed is not None:
            self._keep(changed)
            return True
        self.check_trial_is_updatable(trial_id, self.get_trial(trial_id).state)
        return False

    # ------------------------------------------------------------------ reading trials

    def get_trial(self, trial_id: int) -> FrozenTrial:
        trial = self._trials.get(trial_id)
        if trial is None or not trial.state.is_finished():
            document = self._outages.ask(lambda: self._documents.find_one({"_id": self._id(trial_id)}))
            if document is None:
                raise KeyError(f"the study {self._name} has no trial {trial_id}")
            self._keep(document)
        return self._trials[trial_id]

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        return trial_number

    def get_trial_number_from_id(self, trial_id: int) -> int:
        return trial_id

    def get_n_trials(self, study_id: int, state: tuple[TrialState, ...] | TrialState | None = None) -> int:
        states = (state,) if isinstance(state, TrialState) else state
        wanted = self._of_trials(states)
        return int(self._outages.ask(lambda: self._documents.count_documents(wanted)))

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        if states is not None and not any(state in states for state in TrialState if state.is_finished()):
            wanted = self._of_trials(states)  # few, for which the others need not be read
            documents = self._outages.ask(lambda: list(self._documents.find(wanted).sort("_id", 1)))
            return [_trial(document) for document in documents]
        self._read()
        trials = [self._trials[number] for number in self._numbers]
        if states is not None:
            trials = [trial for trial in trials if trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def _of_trials(self, states: Container[TrialState] | None = None) -> dict[str, Any]:
        if states is None:
            return {"study": self._name}
        return {"study": self._name, "state": {"$in": [state.name for state in TrialState if state in states]}}

    def _read(self) -> None:
        """Read the trials that are new since the last time, and those that were unfinished then."""
        asked_at = time.monotonic()
        if asked_at - self._read_at < _FRESH_S:
            return
        num = bisect.bisect_left(self._numbers, _AGAIN)
        following = self._numbers[num - 1] + 1 if num else 0
        # A lower number may have no trial yet: its agent has claimed the point, and is about to write it.
        missing = set() if num == following else set(range(following)).difference(self._numbers)
        changing = [self._id(number) for number in sorted(missing | self._unfinished)]
        again = [self._id(number) for number in self._numbers[num:] if number not in self._unfinished]
        new = {"$gte": self._id(following), "$lt": f"{self._name}0", "$nin": again}  # 0 follows the slash
        wanted = {"$or": [{"_id": new}, {"_id": {"$in": changing}}]}
        for document in self._outages.ask(lambda: list(self._documents.find(wanted))):
            self._keep(document)
        self._read_at = asked_at

    def _keep(self, document: Mapping[str, Any]) -> None:
        trial = _trial(document)
        if trial.number not in self._trials:
            bisect.insort(self._numbers, trial.number)
        self._trials[trial.number] = trial
        (self._unfinished.discard if trial.state.is_finished() else self._unfinished.add)(trial.number)

    @property
    def _further(self) -> str:
        """Begins the ids of further trials of points, which follow all others."""
        return f"{self._name}/r"

    def _id(self, number: int) -> str:
        attempt, point = divmod(number, _AGAIN)
        return f"{self._further}{point:0{_DIGITS}d}.{attempt}" if attempt else f"{self._name}/{point:0{_DIGITS}d}"


def _number(document: Mapping[str, Any]) -> int:
    point, _, attempt = document["_id"].rpartition("/")[2].removeprefix("r").partition(".")
    return int(point) + int(attempt or 0) * _AGAIN


def _fields(trial: FrozenTrial) -> dict[str, Any]:
    """Return a trial as the fields of its document."""
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


def _trial(document: Mapping[str, Any]) -> FrozenTrial:
    """Return the trial of a document."""
    distributions = {name: _distribution(text) for name, _, text in document["parameters"]}
    return FrozenTrial(
        number=_number(document),
        trial_id=_number(document),
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
    """The journal that earlier versions kept for a study, for reading: a document for each entry, numbered."""

    def __init__(self, entries: Collection[dict[str, Any]], name: str, outages: Outages) -> None:
        self._entries, self._name, self._outages = entries, name, outages

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        wanted = {"_id": {"$gte": f"{self._name}/{log_number_from:0{_DIGITS}d}", "$lt": f"{self._name}0"}}
        for entry in self._outages.ask(lambda: list(self._entries.find(wanted).sort("_id", 1))):
            yield json.loads(entry["entry"])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        raise NotImplementedError(f"the journal of sweep {self._name} is of an earlier version, and only read")


def journal_storage(entries: Collection[dict[str, Any]], name: str, outages: Outages) -> BaseStorage | None:
    """Return the study that an earlier version kept as a journal, for reading; None if there is none."""
    if outages.ask(lambda: entries.find_one({"_id": name})) is None:
        return None
    return JournalStorage(_OldJournal(entries, name, outages))


def convert_journal(journal: BaseStorage, storage: MongoStorage, name: str) -> None:
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
