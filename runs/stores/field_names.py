"""`FieldNames`: rejecting fields that no run of a store has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from configs.map import alternatives
from runs.errors import FilterError
from runs.query.conditions import Condition, Filter, leaves
from runs.query.filters import Question, names_in
from runs.query.names import COMMON_FIELDS, full_name, is_searchable, short_name, similar_names
from runs.query.texts import STATUS_STYLES, suggestion
from runs.stores.backend import Backend
from runs.stores.run import Run

__all__ = ["FieldNames", "require_searchable"]


class FieldNames:
    """Names of fields in the runs of a store; remembers those that some run has.

    Args:
        backend: The backend of the store.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: set[str] = set()

    def check(self, name: str) -> None:
        """See `runs.stores.store.Store.check_field`."""
        name = full_name(name)
        if name in COMMON_FIELDS or name in self._known:
            return
        if not self._backend.has_field(name) and self._backend.find(Question(limit=1)):
            near = similar_names(name, {*self._backend.fields(), *COMMON_FIELDS})
            listing = "see those of a run: python -m runs show latest --json"
            hint = f"did you mean {alternatives(near)}?" if near else listing
            raise FilterError(f"no run has a field {short_name(name)!r}; {hint}")
        self._known.add(name)

    def check_answer(self, question: Question, columns: Collection[str], found: Sequence[Run]) -> None:
        """Check the fields of an answered question, looking up only names without a value in any run.

        Args:
            question: The question.
            columns: The columns that a person named.
            found: The runs that the backend found.

        Raises:
            FilterError: If no run has one of the fields, if `<` or its kin compare a text with a field that is never a
                text, or if a status is not in capitals.
        """
        asked = {question.by, *map(full_name, columns)}
        doubtful = {name for name in asked if not any(run.may_have(name) for run in found)}
        if not found:
            # That no run has a tag, or lacks a field, is an answer.
            doubtful |= {name for name in names_in(question.tree, with_value=True) if not name.startswith("tags.")}
        for name in sorted(doubtful):
            self.check(name)
        if not found:
            _check_statuses(question.tree)
            self._check_orders(question.tree)

    def _check_orders(self, tree: Filter) -> None:
        """Reject `<` and its kin between a text and a field that is a text in no run, such as `lr<abc`."""
        for leaf in leaves(tree):
            if (
                not isinstance(leaf, Condition)
                or leaf.operator not in ("<", "<=", ">", ">=")
                or leaf.name in COMMON_FIELDS
            ):
                continue
            if isinstance(leaf.value, str) and self._lacks_texts(leaf.name):
                name = short_name(leaf.name)
                raise FilterError(
                    f"{name}{leaf.operator}{leaf.value}: no run has a text in {name}; compare it with a number"
                )

    def _lacks_texts(self, name: str) -> bool:
        """Return whether there are runs, and none with a text in this field."""
        find = self._backend.find
        return not find(Question(Condition(name, ">=", ""), limit=1)) and bool(find(Question(limit=1)))


def _check_statuses(tree: Filter) -> None:
    """Reject a status that is not written in capitals, such as `status=failed`."""
    for leaf in leaves(tree):
        if isinstance(leaf, Condition) and leaf.name == "status" and leaf.operator in ("==", "in"):
            for status in leaf.value if leaf.operator == "in" else [leaf.value]:
                if isinstance(status, str) and status != status.upper():
                    hint = suggestion(status, STATUS_STYLES, f"expected one of {', '.join(STATUS_STYLES)}")
                    raise FilterError(f"status: got {status!r}; {hint}")


def require_searchable(names: Iterable[str]) -> None:
    """Reject fields that runs can neither be filtered nor sorted by.

    Args:
        names: Full names of fields.

    Raises:
        FilterError: If one of them can only be a column.
    """
    for name in sorted(names):
        if not is_searchable(name):
            raise FilterError(f"{name}: runs can neither be filtered nor sorted by it; ask for it as a column")
