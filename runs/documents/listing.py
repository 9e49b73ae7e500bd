"""Lists of runs, including unreadable ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

from sacristan.runs.documents.schemas import Others
from sacristan.runs.query.texts import utc

if TYPE_CHECKING:
    from sacristan.runs.stores.run import Run
    from sacristan.runs.stores.store import Store

__all__ = ["COLUMNS", "LISTED", "ListedRun", "Listing", "list_runs", "listed_run"]

COLUMNS = ("display_name", "name", "command", "status", "start", "duration", "result", "tags")


class ListedRun(TypedDict):
    """A run, with one key for each requested column.

    Attributes:
        id: Id in the store.
        uid: Globally unique id; null for a run of stock Sacred, and for an unreadable one.
        unreadable: Why the run cannot be read completely; null if it can.
    """

    id: str
    uid: str | None
    unreadable: str | None


LISTED = list[Annotated[ListedRun, Others("The value of each requested column, under its name as requested.")]]


@dataclasses.dataclass(frozen=True)
class Listing:
    """Runs with their values, and those that cannot be read.

    Attributes:
        broken: Ids of damaged runs, with the reasons.
        is_filtered: Whether conditions chose the runs.
        has_more: Whether more runs match than the limit.
        num_hidden: Number of refused runs that are left out.
    """

    rows: Sequence[tuple[Run, Mapping[str, Any]]]
    columns: Sequence[str]
    broken: dict[str, str]
    is_filtered: bool
    has_more: bool
    num_hidden: int

    def documents(self) -> list[ListedRun]:
        """Return the runs for JSON; without conditions, those that cannot be read at all come last."""
        documents = [listed_run(run, row, self.broken.get(run.id)) for run, row in self.rows]
        return documents if self.is_filtered else documents + [self._unread(id) for id in self.unlisted()]

    def unlisted(self) -> dict[str, str]:
        """Return the damaged runs that are not among the rows, with the reasons."""
        listed = {run.id for run, _ in self.rows}
        return {id: why for id, why in self.broken.items() if id not in listed}

    def _unread(self, id: str) -> ListedRun:
        own: ListedRun = {"id": id, "uid": None, "unreadable": self.broken[id]}
        return cast("ListedRun", {**dict.fromkeys(("id", "uid", *self.columns)), **own})


def list_runs(
    store: Store,
    filters: Sequence[Any],
    sort: str,
    limit: int | None,
    columns: Sequence[str],
    *,
    with_refused: bool = False,
    columns_of: Callable[[Sequence[Run]], Sequence[str]] | None = None,
) -> Listing:
    """Return runs with the values of columns; without filters, refused runs are omitted.

    `columns` are fetched; `columns_of` chooses others by the runs found. Raises FilterError if a filter, the order or
    a column is invalid.
    """
    from sacristan.runs.query.names import REFUSED
    from sacristan.runs.stores.rows import read_rows

    is_hiding = not (filters or with_refused)
    also = [{REFUSED: {"$ne": True}}] if is_hiding else []
    # One more tells whether there are more.
    runs = store.find([*filters, *also], sort, limit + 1 if limit else None, (*columns, "uid"))
    for run in runs:
        run.is_listed = True
    shown = runs[:limit]
    columns = columns_of(shown) if columns_of else columns
    rows, problems = read_rows(shown, columns)
    broken = dict(store.unreadable())
    broken |= {id: why for id, why in problems.items() if id not in broken}
    num_hidden = store.count({REFUSED: True}) if is_hiding else 0
    return Listing(rows, columns, broken, bool(filters), len(runs) > len(shown), num_hidden)


def listed_run(run: Run, values: Mapping[str, Any], problem: str | None) -> ListedRun:
    """Return one run for JSON; `problem` is why it cannot be read completely."""
    from sacristan.runs.query.names import TIMES, full_name

    times = {name: utc(value) for name, value in values.items() if full_name(name) in TIMES}
    own: ListedRun = {"id": run.id, "uid": run.uid, "unreadable": problem}
    return cast("ListedRun", {"id": run.id, "uid": run.uid, **values, **times, **own})
