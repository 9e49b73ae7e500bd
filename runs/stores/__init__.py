"""`Store`: all runs of a folder or of a database, behind one API."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sacristan.runs.drawing import escape
from sacristan.runs.errors import FilterError, StoreAwayError, StoreError
from sacristan.runs.query import COMMON_FIELDS
from sacristan.runs.query.filters import Question, names_in, parse_filter
from sacristan.runs.stores.aliases import Aliases
from sacristan.runs.stores.changes import Added, Author, Discarded, Removed, StagedRun, discarder, staging_folder
from sacristan.runs.stores.content import Content, Fetched, Medium, StoredArtifact, fetch, length_of, missing_content
from sacristan.runs.stores.contract import NOTED, PARTS, Backend, Change, Documents, R, RunRow, StoredRun
from sacristan.runs.stores.finding import (
    NEWEST_FIRST,
    FieldNames,
    find_run,
    find_runs,
    require_searchable,
    runs_by,
    watch_runs,
)
from sacristan.runs.stores.operations import Copied, Operations
from sacristan.runs.stores.run import COPYING, HELD, REMOVING, Run, prefetch
from sacristan.runs.stores.small_documents import Messages, Report, Reports, SavedView, SavedViews
from sacristan.runs.stores.tables import (
    DEFAULT_COLUMNS,
    HANDFUL,
    WHOLE_COLUMNS,
    RunList,
    census,
    curve_frame,
    read_rows,
    run_frame,
)

if TYPE_CHECKING:
    import pandas

    from sacristan.observers.artifacts.store import Lineage as ArtifactLineage
    from sacristan.observers.record.points import Series

__all__ = [
    "COPYING",
    "HANDFUL",
    "HELD",
    "NEWEST_FIRST",
    "NOTED",
    "PARTS",
    "REMOVING",
    "Added",
    "Aliases",
    "Author",
    "Backend",
    "Change",
    "Content",
    "Copied",
    "Discarded",
    "Documents",
    "Fetched",
    "Medium",
    "R",
    "Removed",
    "Report",
    "Run",
    "RunList",
    "RunRow",
    "SavedView",
    "StagedRun",
    "Store",
    "StoredArtifact",
    "StoredRun",
    "census",
    "discarder",
    "fetch",
    "length_of",
    "missing_content",
    "prefetch",
    "read_rows",
    "runs_by",
]

# Runs that a notebook shows of a store.
_SHOWN = 20


class Store(Operations, contextlib.AbstractContextManager["Store"]):
    """All runs of one place, a folder or a database: find, read, tag, remove and add them.

    A store serves one thread. It holds an index or a connection until you close it, by `close` or with a `with` block.
    Every method raises StoreError if the folder or the database cannot be read or written.

    Args:
        backend: The folder or the database; `open_store` chooses it.
        open_folder: Opens the folder that a run of a database was recorded in.

    Attributes:
        where: The folder, or the URL without credentials.
        backend: The folder or the database, with operations that users do not need.
        views, reports: Named views, and pages of Markdown, which the board shows.
        aliases, messages: Names of versions that move; who sends which message about a run.
        on_progress: Called now and then during long work with the task, the amount done and the total.
        author: Who changes runs, which they keep; by default the user of this process.
        max_age_s: Age in seconds that answers may have about runs that have ended; 0 for none. Checking a folder of
            20,000 runs for changes takes 0.15 s, which a page that refreshes can save.

    Example:
        with open_store("my_runs") as store:
            for run in store.find(["optimizer.lr<1e-3", "duration>0.1"], sort="-val/accuracy.max", limit=10):
                print(run.id, run["val/accuracy.max"])
            run = store.tag(store.get("latest"), ["baseline"])
            print(store.frame("tags.baseline=True", columns=["optimizer.lr", "result"]))
    """

    def __init__(self, backend: Backend, open_folder: Callable[[Path], Store] | None = None) -> None:
        self.backend, self.where = backend, backend.where
        self.author = Author.of_process()
        self.views = SavedViews(backend.documents)
        self.reports = Reports(backend.documents)
        self.messages = Messages(backend.documents)
        self.aliases = Aliases(self)
        self._open_folder = open_folder
        self._names = FieldNames(backend)

    def __repr__(self) -> str:
        return f"Store({self.where!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place, for a database with the credentials of its URL; unpickling opens it again."""
        return Store, (self.backend, self._open_folder), {"max_age_s": self.max_age_s}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the store itself: deep copies of runs belong to it."""
        return self

    def close(self) -> None:
        """Close the index or the connection."""
        self.backend.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def on_progress(self) -> Callable[[str, int, int], None] | None:
        """See the attributes above."""
        return self.backend.on_progress

    @on_progress.setter
    def on_progress(self, tell: Callable[[str, int, int], None] | None) -> None:
        self.backend.on_progress = tell

    @property
    def max_age_s(self) -> float:
        """See the attributes above."""
        return self.backend.max_age_s

    @max_age_s.setter
    def max_age_s(self, seconds: float) -> None:
        self.backend.max_age_s = seconds

    # ------------------------------------------------------------------ finding

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.backend.find(Question()))

    def __bool__(self) -> bool:
        """Return True, even without runs."""
        return True

    def __iter__(self) -> Iterator[Run]:
        """Iterate over all present runs, newest first."""
        return iter(self.find())

    def _repr_html_(self) -> str:
        """Return the store as notebooks show it: its newest runs."""
        try:
            newest, count = self.latest(_SHOWN), len(self)
        except StoreError as error:
            return escape(str(error))
        return newest.as_html(f"{self.where}: {count} run{'s' * (count != 1)}, the newest first")

    def find(
        self,
        filter: Any = None,
        sort: str | None = NEWEST_FIRST,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        offset: int = 0,
    ) -> RunList:
        """Return the runs that meet a filter, as a list that a notebook shows as a table with curves.

        Args:
            filter: A condition such as `"optimizer.lr<1e-3"`: a field, one of `= != < <= > >= ~` (a regular expression)
                and a value; or the triple `("optimizer.lr", "<", 1e-3)`; a list of conditions, which must all hold; a
                document as in MongoDB, `{"config.optimizer.lr": {"$lt": 1e-3}}`; `runs.Words("...")` for a text
                search; None for all runs. Fields are entries of the config, statistics of metrics (`val/loss.min`),
                and `status`, `start`, `duration` (seconds) and so on; see `sacristan.runs.query`. A name with
                spaces or operators stands between backticks: "`AP@IoU=0.5.max`>0.3".
            sort: A field, prefixed with `-` for descending order. Numbers come before texts; runs without the field,
                or with a NaN, come last in either direction. None sorts by id.
            limit: Maximum number of runs.
            columns: Fields to fetch with the runs, so that `run[name]` reads no more; by default `DEFAULT_COLUMNS`.
            offset: Number of runs to skip.

        Raises:
            FilterError: If the filter is malformed, or no run has one of the fields; the message suggests similar
                names. `provenance` and other large parts can only be columns.
        """
        question = Question.of(filter, sort, limit, DEFAULT_COLUMNS if columns is None else columns, offset)
        require_searchable(question.judged)
        fetched = question.columns if question.by in COMMON_FIELDS else (*question.columns, question.by)
        runs = self.answer(dataclasses.replace(question, columns=fetched))
        self._names.check_columns((question.by, *(columns or ())), runs)
        self._names.check_filter(question.tree, runs)
        return runs

    def answer(self, question: Question) -> RunList:
        """Return the runs that match a question, which is parsed already; names that no run has are not rejected."""
        return RunList(map(self._run, self.backend.find(question)))

    def _run(self, row: RunRow) -> Run:
        run = Run(self, row.id, row.values, row.key)
        run.problem = row.problem
        return run

    def latest(self, n: int = 1) -> RunList:
        """Return the `n` runs that started last, newest first."""
        return self.find(limit=n)

    def get(self, key: str | int) -> Run:
        """Return one run.

        Args:
            key: Its id, its uid, an unambiguous beginning of its uid, or `latest` for the run that started last.

        Raises:
            RunNotFoundError: If there is no such run, or more than one.
        """
        return find_run(self, key)

    def get_all(self, keys: Iterable[str | int]) -> list[Run]:
        """Return several runs, each once, in the order of their keys.

        Args:
            keys: See `get`.

        Raises:
            RunNotFoundError: As `get` does.
        """
        return find_runs(self, keys)

    def count(self, filter: Any = None, limit: int | None = None) -> int:
        """Return the number of runs that meet a filter.

        Args:
            filter: See `find`.
            limit: Where to stop counting, so that a database need not check every run.

        Raises:
            FilterError: As `find` does.
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise FilterError(f"limit: got {limit!r}, expected a maximum number of runs to count, or None for all")
        tree = parse_filter(filter)
        require_searchable(names_in(tree))
        counted = self.backend.count(tree, limit)
        self._names.check_filter(tree)
        return counted

    def watch(self, filter: Any = None, interval_s: float = 1.0) -> Iterator[Run]:
        """Yield every run that is new or has changed, for ever; first the newest runs as they are.

        Only the newest runs are watched: an old one that changes long after its end is missed.

        Args:
            filter: See `find`.
            interval_s: Seconds between two checks.

        Raises:
            FilterError: With the first run, as `find` does.
        """
        return watch_runs(self, filter, interval_s)

    def frame(
        self,
        filter: Any = None,
        sort: str | None = NEWEST_FIRST,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pandas.DataFrame:
        """Return runs as a pandas DataFrame, a row each, indexed by id; times are datetimes in UTC.

            store.frame("model.name=cnn", columns=["lr", "duration", "val/accuracy.max"]).groupby("lr").mean()

        Args:
            filter, sort, limit: See `find`.
            columns: Fields; by default every entry of the configs, every statistic of the summaries, and the host.

        Unreadable parts of a damaged record are missing; `frame.attrs["problems"]` has the reason by the run's id, and
        a warning is logged.

        Raises:
            FilterError: As `find` does.
        """
        return run_frame(self.find(filter, sort, limit, WHOLE_COLUMNS if columns is None else columns), columns)

    def curves(
        self,
        names: str | Sequence[str],
        where: Any = None,
        sort: str | None = NEWEST_FIRST,
        limit: int | None = None,
        num_points: int | None = None,
    ) -> pandas.DataFrame:
        """Return the points of metrics of many runs as one pandas DataFrame, a row for each point.

            store.curves("val/loss", where="model.name=cnn").pivot_table("value", "step", "id").plot()

        The columns are `id` (of the run), `metric`, `step`, `epoch` (NaN if the record does not tell), `value`, `time`
        (seconds since the run started) and `wall_time` (a datetime in UTC). A run without a metric has no rows of it.

        Args:
            names: A metric, or several.
            where, sort, limit: The runs; see the filter of `find`.
            num_points: Maximum number of points of each curve, extremes kept; see `Run.metric`.

        Raises:
            FilterError: As `find` does.
            StoreError: If no run has one of the metrics, or one cannot be read.
        """
        names = [names] if isinstance(names, str) else list(names)
        return curve_frame([run.listed() for run in self.find(where, sort, limit)], names, num_points)

    # ------------------------------------------------------------------ fields and their names

    def fields(self) -> list[str]:
        """Return the full names of the runs' fields; a database reads its newest runs only."""
        return self.backend.fields()

    def check_field(self, name: str) -> None:
        """Reject a field that no run has, if there are runs.

        Args:
            name: The field, short or full.

        Raises:
            FilterError: If no run has it; the message suggests similar names.
        """
        self._names.check(name)

    def unreadable(self, max_age_s: float = 0.0) -> list[tuple[str, str]]:
        """Return id and reason for every run that cannot be read completely, as of at most `max_age_s` ago."""
        return self.backend.unreadable(max_age_s)

    # ------------------------------------------------------------------ reading ahead

    def prefetch(self, runs: Sequence[Run], names: Sequence[str]) -> None:
        """Fetch fields of many runs at once, so that each run need not ask the store.

        Fields that cannot be fetched are left for the run to report. A folder has nothing to fetch.

        Args:
            runs: Runs of this store.
            names: Full names of fields; `config`, `info`, `summary` or `provenance` as a whole; `metrics` for the names
                of the metrics.
        """
        for wanted in ([name for name in names if name != "metrics"], [name for name in names if name == "metrics"]):
            lacking = [run for run in runs if not all(map(run.holds, wanted))]
            for run, values in self.backend.read_ahead(lacking, wanted) if lacking else ():
                run.hold(values)

    def recorded_in(self, folder: Path) -> Run | None:
        """Return the run that lies in a folder on this machine; None if no store of folders can be opened."""
        return None if self._open_folder is None else self._open_folder(folder.parent).get(folder.name)

    def each_series(self, runs: Sequence[Run], metric: str) -> Iterator[tuple[Run, Series | None]]:
        """Yield each of some runs of this store, in order, with the points of a metric, None where it lacks that."""
        return self.backend.series(runs, metric)

    def points_versions(self, runs: Sequence[Run], metric: str) -> list[Hashable | None]:
        """Return for each run a value that changes when points of a metric are added, removed or replaced.

        It is None where points may change unnoticed, as those of a run that is logging.
        """
        return self.backend.points_versions(runs, metric)

    # ------------------------------------------------------------------ versions of artifacts

    def artifacts(self) -> list[str]:
        """Return the names of the versioned artifacts, sorted."""
        return self.backend.artifacts()

    def artifact_versions(self, name: str) -> list[StoredArtifact]:
        """Return all readable versions of an artifact, oldest first; an unknown one has none."""
        return self.backend.artifact_versions(name)

    def artifact_lineage(self, name: str, version: int) -> ArtifactLineage:
        """Return the runs that made and used a version of an artifact; none if it is not there or damaged."""
        from sacristan.observers.artifacts.store import Lineage

        try:
            found = self.backend.artifact_versions(name, version)
        except StoreAwayError:
            raise
        except StoreError:
            found = []
        return Lineage(found[0].made_by, found[0].used_by) if found else Lineage((), ())

    @property
    def recording_folder(self) -> Path | None:
        """The folder whose runs belong to this store when a process of this machine records there; None if none."""
        return None if self.backend.folder is None else self.backend.folder.resolve()

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        """Return an empty folder, for a `with` block, in which to prepare runs for `add`."""
        return staging_folder(self.backend.staging_home)
