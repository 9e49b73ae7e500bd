"""`Catalog`: the questions that a store answers about its runs."""

from __future__ import annotations

import abc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from runs.drawing.markup import escape
from runs.errors import FilterError, RunNotFoundError, StoreError
from runs.query.filters import AllOf, Filter, names_in, parse_filter
from runs.query.index.fields import is_indexed
from runs.query.names import COMMON_FIELDS, TIMES, full_name, short_name, similar_names
from runs.query.times import time_of
from runs.stores.rows import DEFAULT_COLUMNS, WHOLE_COLUMNS, read_rows
from runs.stores.run import Run
from runs.stores.run_list import RunList

if TYPE_CHECKING:
    import pandas

    from observers.record.points.points import Series
    from runs.stores.artifact_versions import StoredArtifact

__all__ = ["NEWEST_FIRST", "Catalog"]

_log = logging.getLogger(__name__)

NEWEST_FIRST = "-start_time"
_WATCHED = ("status", "start_time", "stop_time", "heartbeat", "result")
_MAX_WATCHED = 200
# Runs that a notebook shows of a store.
_SHOWN = 20


class Catalog(abc.ABC):
    """The reading half of a `Store`: nothing here changes a run.

    Every store gives the same answer to the same question. What differs between a folder and a database, a subclass
    says in the abstract methods.

    Attributes:
        where: The folder, or the URL without credentials.
        on_progress: Told from time to time, in long work, what is done, how much of it, and of how much.
        max_age_s: How old may be what `find` and `count` know; 0 for now. To look for changes in a folder of 20,000
            runs takes 0.15 s, which a page that will look again can do without.
    """

    where: str
    on_progress: Callable[[str, int, int], None] | None = None
    max_age_s: float = 0.0
    # Those that were found to be there, which they stay.
    _known_fields: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: deep copies of runs are in the same store."""
        return self

    def __len__(self) -> int:
        """Return how many runs there are.

        Raises:
            StoreError: If the store cannot be read.
        """
        return len(self._find(AllOf(()), None, None, ()))

    def __bool__(self) -> bool:
        """Return True: a store without runs is one, too."""
        return True

    def __iter__(self) -> Iterator[Run]:
        """Iterate over all runs there are by now, the newest first.

        Raises:
            StoreError: If the store cannot be read.
        """
        return iter(self.find())

    def _repr_html_(self) -> str:
        """Return the form of it that notebooks show: its newest runs."""
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
        """Return the runs that a filter is true of, as a list that a notebook shows as a table with curves.

        Args:
            filter: A condition such as `"optimizer.lr<1e-3"`: a field, one of `= != < <= > >= ~` (a regular expression)
                and a value; or the triple `("optimizer.lr", "<", 1e-3)`; a list of conditions, which must all hold; a
                document as in MongoDB, `{"config.optimizer.lr": {"$lt": 1e-3}}`; `runs.Words("...")` for a search
                in texts; None for all runs. Fields are entries
                of the config, statistics of metrics (`val/loss.min`), and `status`, `start`, `duration` (seconds) and
                so on; see `runs.query.names`.
            sort: A field, with a `-` ahead for the greatest first. Numbers come before texts, and runs without the
                field, or with a NaN, last in either direction. None gives the order of the ids.
            limit: How many at most.
            columns: Fields to fetch along, so that `run[name]` asks nobody again; by default `DEFAULT_COLUMNS`.
            offset: How many runs are passed over before the first one.

        Raises:
            FilterError: If the filter makes no sense, or a field is asked for that no run has; the message names
                those that are spelt much like it. `provenance` and what else is large are columns only.
            StoreError: If the store cannot be read.
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise FilterError(f"limit: got {limit!r}, expected a maximum number of runs, or None for all")
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise FilterError(f"offset: got {offset!r}, expected the number of runs to skip, at least 0")
        tree = parse_filter(filter)
        by = full_name(sort.removeprefix("-")) if sort else "_id"
        _require_indexed(names_in(tree) | {by})
        fetched = [*(DEFAULT_COLUMNS if columns is None else columns), *({by} - COMMON_FIELDS)]
        found = self._find(tree, sort, limit, fetched, offset)
        self._check_names(tree, {by, *map(full_name, columns or ())}, found)
        return RunList(found)

    @abc.abstractmethod
    def _find(
        self, tree: Filter, sort: str | None, limit: int | None, columns: Sequence[str], offset: int = 0
    ) -> list[Run]:
        """Return the runs that a filter is true of, whether or not runs have the fields; see `find`."""

    def count(self, filter: Any = None, limit: int | None = None) -> int:
        """Return how many runs a filter is true of.

        Args:
            filter: See `find`.
            limit: Where to stop counting, so that a database need not look at every run.

        Raises:
            FilterError: If the filter makes no sense; that no run has one of its fields is no error here.
            StoreError: If the store cannot be read.
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise FilterError(f"limit: got {limit!r}, expected a maximum number of runs to count, or None for all")
        tree = parse_filter(filter)
        _require_indexed(names_in(tree))
        return self._count(tree, limit)

    @abc.abstractmethod
    def _count(self, tree: Filter, limit: int | None) -> int:
        """Return how many runs a filter is true of, `limit` at most, a second ago or now."""

    @abc.abstractmethod
    def _has_field(self, name: str) -> bool:
        """Tell whether any run has the field of that full name, or a field below it."""

    @abc.abstractmethod
    def fields(self) -> list[str]:
        """Return the full names of fields that runs have; of a database those of its newest runs."""

    @abc.abstractmethod
    def unreadable(self, max_age_s: float = 0.0) -> list[tuple[str, str]]:
        """Return id and reason for every run of which something cannot be read.

        Args:
            max_age_s: How old the answer may be: a database looks at every document for it.
        """

    @abc.abstractmethod
    def _run_of_id(self, key: str) -> Run | None:
        """Return the run of that id, if there is one."""

    def _run_of_uid(self, uid: str) -> Run | None:
        found = self._find(parse_filter([("uid", "==", uid)]), None, 1, ())
        return self.get(found[0].id) if found else None

    def _check_names(self, tree: Filter, asked: set[str], found: Sequence[Run]) -> None:
        """Refuse fields that no run has. Only names that gave nothing are looked up, so that a good query is fast."""
        doubtful = {name for name in asked if not any(run.may_have(name) for run in found)}
        if not found:
            # That nobody has a tag is an answer, and so it is to the question whether there is a field at all.
            doubtful |= {name for name in names_in(tree, with_value=True) if not name.startswith("tags.")}
        for name in sorted(doubtful):
            self.check_field(name)

    def check_field(self, name: str) -> None:
        """Refuse a field that no run has, though there are runs.

        Args:
            name: The field, short or full.

        Raises:
            FilterError: If none has it; the message names those that are spelt much like it.
            StoreError: If the store cannot be read.
        """
        name = full_name(name)
        if name in COMMON_FIELDS or name in self._known_fields:
            return
        if not self._has_field(name) and self._find(AllOf(()), None, 1, ()):
            near = similar_names(name, {*self.fields(), *COMMON_FIELDS})
            hint = f"did you mean {' or '.join(near)}?" if near else "see a run's: python -m runs show latest --json"
            raise FilterError(f"no run has a field {short_name(name)!r}; {hint}")
        self._known_fields = self._known_fields | {name}

    def get(self, key: str | int) -> Run:
        """Return one run, by its id, its uid, an unambiguous beginning of its uid, or `latest`.

        Raises:
            RunNotFoundError: If there is none, or more than one.
        """
        text = str(key).strip()
        if text == "latest":
            found = self.latest(1)
            if not found:
                raise RunNotFoundError(f"there is no run in {self.where} yet")
            return found[0]
        run = self._run_of_id(text)
        if run is not None:
            return run
        if text:
            # What begins with the text lies between it and the text with the greatest digit behind it.
            found = self.find([("uid", ">=", text), ("uid", "<", f"{text}g")], limit=6)
            if len(found) == 1:
                return found[0]
            if found:
                ids = ", ".join(f"{run.id} ({run.uid})" for run in found[:5])
                raise RunNotFoundError(f"{text!r} is the beginning of more than one uid: {ids}; give more of it")
        raise RunNotFoundError(f"there is no run {text!r} in {self.where}; list them with: python -m runs ls")

    def get_all(self, keys: Iterable[str | int]) -> list[Run]:
        """Return runs, each once, in the order of their keys; see `get`.

        Raises:
            RunNotFoundError: As `get` does.
        """
        return list(dict.fromkeys(self.get(key) for key in keys))

    def prefetch(self, runs: Sequence[Run], names: Sequence[str]) -> None:  # noqa: B027
        """Fetch fields of runs of this store, so that a run that is asked for one need not ask the store.

        What cannot be fetched is left for the run to say so. A folder has nothing to fetch, as each run is in files of
        its own.

        Args:
            runs: Of this store.
            names: Full names of fields; `config`, `info`, `summary` or `provenance` as a whole; and `metrics` for the
                names of the metrics.

        Raises:
            StoreError: If the store cannot be read.
        """

    def each_series(self, runs: Sequence[Run], metric: str) -> Iterator[tuple[Run, Series | None]]:
        """Yield the points of a metric of each run of this store, in the order of the runs; None without the metric.

        Raises:
            StoreError: If a run cannot be read.
        """
        for run in runs:
            yield run, run._series(metric)

    def latest(self, n: int = 1) -> RunList:
        """Return the `n` runs that started last, the last one first."""
        return self.find(limit=n)

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

        What cannot be read of a damaged record is missing; `frame.attrs["problems"]` says why, by the run's id, and a
        warning is logged.

        Raises:
            FilterError: As `find` does.
        """
        import pandas

        runs = self.find(filter, sort, limit, WHOLE_COLUMNS if columns is None else columns)
        rows, problems = read_rows(runs, columns)
        frame = pandas.DataFrame([row for _, row in rows], index=pandas.Index([run.id for run, _ in rows], name="id"))
        if problems:
            frame.attrs["problems"] = problems
            for id, why in problems.items():
                _log.warning("run %s cannot be read completely: %s", id, why)
        for name in frame.columns:
            if full_name(name) in TIMES:
                frame[name] = pandas.to_datetime([time_of(value) for value in frame[name]], utc=True, errors="coerce")
        return frame

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

        Its columns are `id` (of the run), `metric`, `step`, `epoch` (NaN where the record does not tell), `value`,
        `time` (seconds since the run started) and `wall_time` (a datetime in UTC). Runs without a metric have no rows
        of it.

        Args:
            names: A metric, or several.
            where, sort, limit: The runs; see `find`.
            num_points: At most as many of each curve, extremes kept; see `Run.metric`.

        Raises:
            FilterError: As `find` does.
            StoreError: If no run has one of the metrics, or one cannot be read.
        """
        from runs.stores.curve_frames import curve_frame

        names = [names] if isinstance(names, str) else list(names)
        return curve_frame([run.listed() for run in self.find(where, sort, limit)], names, num_points)

    def watch(self, filter: Any = None, interval_s: float = 1.0) -> Iterator[Run]:
        """Yield every run that is new or has changed, for ever; at first the newest runs as they are.

        Runs that change long after they ended, and are none of the newest, are passed over.

        Args:
            filter: See `find`.
            interval_s: Seconds between two looks.

        Raises:
            FilterError: At the first run, as `find` does.
        """
        found: list[Run] = self.find(filter, limit=_MAX_WATCHED, columns=_WATCHED)
        seen: dict[str, tuple[Any, ...]] = {}
        while True:
            for run in reversed(found):
                state = tuple(run[name] for name in _WATCHED)
                if seen.get(run.id) != state:
                    seen[run.id] = state
                    yield run
            time.sleep(interval_s)
            found = self._find(parse_filter(filter), NEWEST_FIRST, _MAX_WATCHED, _WATCHED)

    # ------------------------------------------------------------------ artifacts

    @abc.abstractmethod
    def artifacts(self) -> list[str]:
        """Return the names of the versioned artifacts that are kept with the runs, sorted.

        Raises:
            StoreError: If the store cannot be read.
        """

    @abc.abstractmethod
    def artifact_versions(self, name: str) -> list[StoredArtifact]:
        """Return all versions of an artifact that can be read, the oldest first; of none, nothing.

        Raises:
            StoreError: If the store cannot be read.
        """

    def tell(self, what: str, done: int, total: int) -> None:
        """Tell `on_progress` how far long work is."""
        if self.on_progress is not None:
            self.on_progress(what, done, total)


def _require_indexed(names: Iterable[str]) -> None:
    for name in sorted(names):
        if not is_indexed(name):
            raise FilterError(f"{name}: runs can neither be filtered nor sorted by it; ask for it as a column")
