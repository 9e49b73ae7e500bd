"""Finding runs by the keys that people type, and rejecting fields, statuses and ids that no run has."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sacristan.configs.nearest import question, word_suggestion
from sacristan.observers.record.redaction import typed_command
from sacristan.runs.errors import DiscardedError, FilterError, RunNotFoundError
from sacristan.runs.query import COMMON_FIELDS, KNOWN_FIELDS, full_name, is_searchable, short_name, similar_names
from sacristan.runs.query.conditions import Condition, Filter, Not, is_found, signed_leaves
from sacristan.runs.query.filters import Question, holds
from sacristan.runs.query.texts import STATUS_STYLES, list_text
from sacristan.runs.stores.contract import Backend
from sacristan.runs.stores.record import RunStore
from sacristan.runs.stores.run import COPYING, REMOVING, Run

NEWEST_FIRST = "-start_time"
# What makes a run a changed one, and the number of newest runs that are watched.
_WATCHED = ("status", "start_time", "stop_time", "heartbeat", "result")
_MAX_WATCHED = 200


def runs_by(store: RunStore, keys: Iterable[str]) -> dict[str, Run]:
    """Return runs by their ids or whole uids; unknown ones are left out."""
    return {key: Run(store, row.id, row.values, row.key) for key, row in store.backend.get(keys).items()}


def find_run(store: RunStore, key: str | int) -> Run:
    """Return the run that a user's key means; see `Store.get`."""
    text, where = str(key).strip(), store.where
    if text == "latest":
        newest: list[Run] = store.find(sort=NEWEST_FIRST, limit=1)
        if not newest:
            raise RunNotFoundError(f"there is no run in {where} yet")
        return newest[0]
    run = runs_by(store, [text]).get(text)
    if run is not None:
        return run
    # `g` sorts after any hexadecimal digit.
    uids = [("uid", ">=", text), ("uid", "<", f"{text}g")]
    matches: list[Run] = store.find(uids, NEWEST_FIRST, limit=6) if text else []
    if len(matches) > 1:
        ids = ", ".join(f"{run.id} ({run.uid})" for run in matches[:5])
        raise RunNotFoundError(f"{text!r} is the beginning of more than one uid: {ids}; give more of it")
    if not matches:
        raise _absent(store, text)
    return matches[0]


def _absent(store: RunStore, text: str) -> RunNotFoundError:
    """Return the error of a key that stands for no run, with what to do next."""
    discarded = next((one for one, _ in store.backend.trash() if text in (one.id, one.uid)), None)
    if discarded is not None:
        by = f" by {discarded.by}" if discarded.by else ""
        command = typed_command(store.where, "restore", text)
        why = f"run {text} was moved to the trash of {store.where}{by}; bring it back with: {command}"
        return DiscardedError(why, discarded.key)
    id = text.rstrip("/").rpartition("/")[2]  # people give a run's folder
    hint = f"did you mean {id}?" if store.backend.get([id]) else f"list them with: {typed_command(store.where, 'ls')}"
    return RunNotFoundError(f"there is no run {text!r} in {store.where}; {hint}")


def find_runs(store: RunStore, keys: Iterable[str | int]) -> list[Run]:
    """Return several runs, each once, in the order of their keys; see `Store.get_all`."""
    texts = list(dict.fromkeys(str(key).strip() for key in keys))
    runs_by_text = runs_by(store, [text for text in texts if text != "latest"])
    return list(dict.fromkeys(runs_by_text.get(text) or find_run(store, text) for text in texts))


def watch_runs(store: RunStore, filter: Any, interval_s: float) -> Iterator[Run]:
    """Yield every run that is new or has changed, for ever, checking every `interval_s`; see `Store.watch`."""
    runs = store.find(filter, NEWEST_FIRST, _MAX_WATCHED, _WATCHED)
    question = Question.of(filter, NEWEST_FIRST, _MAX_WATCHED, _WATCHED)
    seen: dict[str, tuple[Any, ...]] = {}
    while True:
        for run in reversed(runs):
            state = tuple(run[name] for name in _WATCHED)
            if seen.get(run.id) != state:
                seen[run.id] = state
                yield run
        time.sleep(interval_s)
        runs = store.answer(question)


# Runs whose values a suggestion looks at.
_SAMPLE = 20
_STATUSES = frozenset((*STATUS_STYLES, COPYING, REMOVING))


class FieldNames:
    """The names that conditions on the runs of a store may use; remembers which ones some run has.

    A misspelt name, status or id is rejected whatever the question finds: `staus!=COMPLETED` would choose every run.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: set[str] = set()
        self._statuses = set(_STATUSES)

    def check(self, name: str) -> None:
        """See `sacristan.runs.stores.Store.check_field`."""
        name = full_name(name)
        if name in KNOWN_FIELDS or name in self._known:
            return
        if self._backend.fields(name):
            self._known.add(name)
        elif self._has_runs():
            tag = name.removeprefix("tags.")
            what = f"a field {short_name(name)!r}" if tag == name else f"the tag {tag!r}"
            raise FilterError(f"no run has {what}; {self._hint(name)}")

    def check_columns(self, names: Iterable[str], found: Sequence[Run]) -> None:
        """Reject names that no run has, looking up only those without a value in the found runs."""
        asked = set(map(full_name, names))
        for name in sorted(name for name in asked if not any(run.may_have(name) for run in found)):
            self.check(name)

    def check_filter(self, tree: Filter, found: Sequence[Run] = ()) -> None:
        """Reject a condition on a name that no run has, or a comparison of incomparable values.

        A run that never had a tag lacks it, so an unknown tag is rejected only where runs without it are chosen. Fields
        of the `found` runs need no look-up.
        """
        conditions = [(leaf, is_negated) for leaf, is_negated in signed_leaves(tree) if isinstance(leaf, Condition)]
        chosen_by = {leaf.name for leaf, is_negated in conditions if not _is_of_tagged(leaf, is_negated)}
        self._known.update(name for name in chosen_by if any(run.has_at_hand(name) for run in found))
        for name in sorted(chosen_by):
            self.check(name)
        for leaf, is_negated in conditions:
            if leaf.name == "status":
                self._check_status(leaf)
            elif leaf.name.startswith("tags."):
                _check_tag(leaf)
            elif leaf.name in ("_id", "uid") and is_negated:
                self._check_ids(leaf)
            elif leaf.operator in ("<", "<=", ">", ">="):
                self._check_order(leaf)

    def _has_runs(self) -> bool:
        return bool(self._backend.find(Question(limit=1)))

    def _hint(self, name: str) -> str:
        parts = name.split(".")
        for count in range(2, len(parts)):
            above = ".".join(parts[:count])
            if parts[count].isdecimal() and self._has_lists(above):
                return f"entries of a list have no names; ask for {short_name(above)}, the whole list, as a column"
        names = {*self._backend.fields(), *COMMON_FIELDS}
        if name.startswith("tags."):
            tags = sorted(one.removeprefix("tags.") for one in names if one.startswith("tags."))
            return f"there are: {list_text(tags)}" if tags else "there are no tags"
        command = typed_command(self._backend.where, "show", "latest", "--json")
        return question(similar_names(name, names), f"see those of a run: {command}")

    def _has_lists(self, name: str) -> bool:
        rows = self._backend.find(Question(Not(Condition(name, "==", None)), limit=_SAMPLE, columns=(name,)))
        return any(isinstance(row.values.get(name), list) for row in rows)

    def _check_status(self, leaf: Condition) -> None:
        """Reject a status that neither this program nor any run has, such as `failed`."""
        if leaf.operator == "~":
            if not any(is_found(leaf.value, status) for status in self._statuses) and self._is_of_none(leaf):
                raise FilterError(f"status~{leaf.value}: no status matches; there are {', '.join(STATUS_STYLES)}")
            return
        for status in leaf.value if leaf.operator == "in" else [leaf.value]:
            if status is None or (isinstance(status, str) and status in self._statuses):
                continue
            if self._is_of_none(Condition("status", "==", status)):
                otherwise = f"expected one of {', '.join(STATUS_STYLES)}"
                raise FilterError(f"status: got {status!r}; {word_suggestion(str(status), STATUS_STYLES, otherwise)}")
            self._statuses.add(status)

    def _check_ids(self, leaf: Condition) -> None:
        """Reject the exclusion of an id that no run has."""
        asked = leaf.value if leaf.operator == "in" else [leaf.value] if leaf.operator == "==" else []
        if leaf.name == "_id":
            present = self._backend.get({str(id) for id in asked}) if asked else {}
            unknown = [
                id for id in asked if id is not None and (str(id) not in present or present[str(id)].id != str(id))
            ]
        else:
            unknown = [id for id in asked if id is not None and self._is_of_none(Condition("uid", "==", id))]
        if unknown and self._has_runs():
            raise FilterError(
                f"{short_name(leaf.name)}: got {list_text(unknown)}, but there is no such run; see which there are "
                f"with: {typed_command(self._backend.where, 'ls')}"
            )

    def _check_order(self, leaf: Condition) -> None:
        """Reject `<` and the like between a text and a field that is a text in no run, such as `lr<abc`."""
        name, text = leaf.name, leaf.value
        if name in COMMON_FIELDS or not isinstance(text, str) or not self._is_of_none(Condition(name, ">=", "")):
            return
        if self._has_runs():
            name = short_name(name)
            raise FilterError(f"{name}{leaf.operator}{text}: no run has a text in {name}; compare it with a number")

    def _is_of_none(self, condition: Condition) -> bool:
        return not self._backend.find(Question(condition, limit=1))


def _is_of_tagged(leaf: Condition, is_negated: bool) -> bool:
    """Tell whether a condition is about a tag and matches no run without it."""
    return leaf.name.startswith("tags.") and holds(leaf, None) == is_negated


def _check_tag(leaf: Condition) -> None:
    """Reject a value that no tag has: `tags.kept!=yes` would choose every run."""
    for value in leaf.value if leaf.operator == "in" else [leaf.value]:
        if leaf.operator not in ("==", "in") or not (value is True or value is None):
            name = leaf.name
            raise FilterError(f"{name}: got {value!r}; a run has a tag or lacks it: write {name}=True or {name}=None")


def require_searchable(names: Iterable[str]) -> None:
    """Reject fields that can only be columns: runs can neither be filtered nor sorted by them."""
    for name in sorted(names):
        if not is_searchable(name):
            raise FilterError(f"{name}: runs can neither be filtered nor sorted by it; ask for it as a column")
