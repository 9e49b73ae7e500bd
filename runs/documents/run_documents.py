"""Lists of runs, including unreadable ones; of single runs the record, the metrics and the output."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict, cast

from sacristan.runs.documents import Others
from sacristan.runs.query.texts import utc

if TYPE_CHECKING:
    from sacristan.observers.record.points import Series
    from sacristan.runs.stores import Run, Store

COLUMNS = ("display_name", "name", "command", "status", "start", "duration", "result", "tags")


class ShownRun(TypedDict):
    """A run: the fields of its record, and what is computed from it. A field that the record lacks is missing."""

    id: Annotated[str, "Id in the store."]
    uid: Annotated[str | None, "Globally unique id; null for a run of stock Sacred."]
    status: Annotated[str, "Status; DEAD for a process that is gone."]
    duration_s: Annotated[float | None, "Seconds from start to end, or until now; null if unknown."]
    tags: Annotated[list[str], "Tags, sorted."]
    note: Annotated[str, "Note; empty without one."]
    display_name: Annotated[str, "Display name; empty without one."]
    reproductions: Annotated[
        list[dict[str, Any]],
        "Verdicts on the run, or on the run that it reproduces, oldest first.",
    ]
    sessions: NotRequired[Annotated[list[dict[str, Any]], "The processes that wrote the run, if there were several."]]
    children: Annotated[list[str], "Ids of its child runs."]
    config: Annotated[dict[str, Any], "The config."]
    info: Annotated[dict[str, Any], "The info."]
    metrics: Annotated[
        dict[str, dict[str, Any]],
        "Statistics by metric: `count`, `finite`, `first`, `last`, `min`, `max`, `mean` and steps.",
    ]
    artifacts: Annotated[list[str], "Names of its files."]
    checkpoints: Annotated[list[str], "Names of its files."]
    sources: Annotated[list[str], "Names of its files."]
    resources: Annotated[list[str], "Names of its files."]
    provenance: Annotated[dict[str, Any], "Git, libraries, machine and determinism flags, without the packages."]
    # What follows comes from the record as it is, which other programs may have written.
    experiment: NotRequired[Annotated[Any, "Name of the experiment, its folder and sources, as Sacred records them."]]
    command: NotRequired[Annotated[Any, "The command of the experiment, and all words that were typed."]]
    command_line: NotRequired[Annotated[Any, "The command of the experiment, and all words that were typed."]]
    cwd: NotRequired[Annotated[Any, "Where the run was started, and its record."]]
    folder: NotRequired[Annotated[Any, "Where the run was started, and its record."]]
    states_folder: NotRequired[Annotated[Any, "The record with the states of the training, if that is another one."]]
    host: NotRequired[Annotated[Any, "The machine and the user."]]
    meta: NotRequired[Annotated[Any, "Options of the run, as Sacred records them, and its sweep or queue."]]
    format: NotRequired[Annotated[Any, "Format of the record."]]
    start_time: NotRequired[Annotated[Any, "Times, UTC."]]
    stop_time: NotRequired[Annotated[Any, "Times, UTC."]]
    queue_time: NotRequired[Annotated[Any, "Times, UTC."]]
    heartbeat: NotRequired[Annotated[Any, "Times, UTC."]]
    result: NotRequired[Annotated[Any, "Result of the experiment; null without one."]]
    fail_trace: NotRequired[Annotated[Any, "Lines of the traceback of a failed run."]]
    warnings: NotRequired[Annotated[Any, "Warnings of the configuration."]]
    lease: NotRequired[Annotated[Any, "Process that writes the run, and its last heartbeat, in a database."]]
    parent: NotRequired[Annotated[Any, "Uid of the parent run."]]
    revision: NotRequired[Annotated[Any, "How often the record was rewound."]]
    changes: NotRequired[Annotated[Any, "Who changed tags, note and so on, and when."]]
    artifacts_logged: NotRequired[Annotated[Any, "Versions of artifacts."]]
    artifacts_used: NotRequired[Annotated[Any, "Versions of artifacts."]]
    artifacts_aliased: NotRequired[Annotated[Any, "Versions of artifacts."]]


SHOWN = Annotated[ShownRun, Others("Further fields of the record, such as `lost_points`.")]


class Statistics(TypedDict):
    """All metrics of a run."""

    id: Annotated[str, "The run."]
    uid: Annotated[str | None, "The run."]
    metrics: Annotated[
        dict[str, dict[str, Any]],
        "Statistics by metric: `count`, `finite`, `first`, `last`, `min`, `max`, `mean` and steps.",
    ]


class Curve(TypedDict):
    """The points of a metric; the lists have the same length."""

    steps: Annotated[list[int | float], "Steps."]
    times_s: Annotated[list[float], 'Seconds since the start of the run; "NaN" if unknown.']
    values: Annotated[list[float], "Values."]


class Curves(TypedDict):
    """The points of the named metrics of a run."""

    id: Annotated[str, "The run."]
    uid: Annotated[str | None, "The run."]
    metrics: Annotated[dict[str, Curve], "Points by metric."]


METRICS = Statistics | Curves


class Output(TypedDict):
    """The output of a run."""

    id: Annotated[str, "The run."]
    uid: Annotated[str | None, "The run."]
    status: Annotated[str, "Status of the run; while it is RUNNING, more may follow."]
    output: Annotated[str, "The text; bytes that are not UTF-8 are U+FFFD."]


def shown_run(run: Run) -> ShownRun:
    """Return everything that `show` shows."""
    from sacristan.runs.query import TIMES

    document = {**run.document, **{name: utc(run.document[name]) for name in TIMES & run.document.keys()}}
    for name in ("artifacts", "resources", "_id", "id"):
        document.pop(name, None)
    own: ShownRun = {
        "id": run.id,
        "uid": run.uid,
        "status": run.status,
        "duration_s": run.duration_s,
        "tags": run.tags,
        "note": run.note,
        "display_name": run.display_name,
        "reproductions": run.reproductions,
        "children": [child.id for child in run.children()],
        "config": run.get("config"),
        "info": run.get("info"),
        "metrics": run.statistics(),
        "artifacts": list(run.artifacts),
        "checkpoints": list(run.checkpoints),
        "sources": list(run.sources),
        "resources": list(run.resources),
        "provenance": {key: value for key, value in run.provenance.items() if key != "packages"},
    }
    document.pop("sessions", None)
    if run.sessions:
        own["sessions"] = run.sessions
    return cast("ShownRun", {"id": run.id, "uid": run.uid, **document, **own})


def statistics_of(run: Run) -> Statistics:
    """Return the statistics of all metrics."""
    return {"id": run.id, "uid": run.uid, "metrics": run.statistics()}


def curves_of(run: Run, names: Sequence[str], num_points: int | None = None) -> Curves:
    """Return at most `num_points` points of each metric with extremes kept; None for all."""
    return {
        "id": run.id,
        "uid": run.uid,
        "metrics": {name: _curve(run.metric(name, num_points)) for name in names},
    }


def _curve(series: Series) -> Curve:
    return {"steps": series.steps.tolist(), "times_s": series.times.tolist(), "values": series.values.tolist()}


def output_of(run: Run, read: Callable[[], bytes]) -> Output:
    """Return the output, or the part of it that `read` returns."""
    return {"id": run.id, "uid": run.uid, "status": run.status, "output": read().decode("utf-8", "replace")}


class ListedRun(TypedDict):
    """A run, with one key for each requested column."""

    id: Annotated[str, "Id in the store."]
    uid: Annotated[str | None, "Globally unique id; null for a run of stock Sacred, and for an unreadable one."]
    unreadable: Annotated[str | None, "Why the run cannot be read completely; null if it can."]


LISTED = list[Annotated[ListedRun, Others("The value of each requested column, under its name as requested.")]]


@dataclasses.dataclass(frozen=True)
class Listing:
    """Runs with their values, the reasons why damaged ones cannot be read, and the number of refused runs left out."""

    rows: Sequence[tuple[Run, Mapping[str, Any]]]
    columns: Sequence[str]
    broken: dict[str, str]
    is_filtered: bool
    has_more: bool
    num_hidden: int

    def documents(self) -> list[ListedRun]:
        """Return the runs for JSON; without conditions, those that cannot be read at all come last."""
        documents = [listed_run(run, row, self.broken.get(run.id)) for run, row in self.rows]
        if not self.is_filtered:
            empty = dict.fromkeys(("id", "uid", *self.columns))
            documents += [
                cast("ListedRun", {**empty, "id": id, "unreadable": why}) for id, why in self.unlisted().items()
            ]
        return documents

    def unlisted(self) -> dict[str, str]:
        """Return the damaged runs that are not among the rows, with the reasons."""
        listed = {run.id for run, _ in self.rows}
        return {id: why for id, why in self.broken.items() if id not in listed}


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
    from sacristan.runs.query import REFUSED
    from sacristan.runs.stores import read_rows

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
    from sacristan.runs.query import TIMES, full_name

    times = {name: utc(value) for name, value in values.items() if full_name(name) in TIMES}
    own: ListedRun = {"id": run.id, "uid": run.uid, "unreadable": problem}
    return cast("ListedRun", {"id": run.id, "uid": run.uid, **values, **times, **own})
