"""`ExperimentLoader`: incense's interface to past runs over every store; with its experiments and query sets."""

from __future__ import annotations

import contextlib
import functools
import mimetypes
import numbers
import os
import warnings
from collections import UserList
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sacristan.configs import freeze, to_plain
from sacristan.configs.nearest import word_suggestion
from sacristan.runs.errors import FilterError, MissingExtraError, StoreError
from sacristan.runs.notebooks.saved_artifacts import Artifact, ArtifactSet, make_artifact
from sacristan.runs.query import RUN_FIELDS, TIMES, id_of, time_of
from sacristan.runs.stores import PARTS, Run
from sacristan.runs.stores.opening import open_store

if TYPE_CHECKING:
    import pandas
    from incense import ExperimentLoader as IncenseLoader

    from sacristan.observers.record.points import Series
    from sacristan.runs.stores import Removed, Store

__all__ = ["PAGE", "Experiment", "ExperimentLoader", "Page", "QuerySet", "incense"]

# Number of experiments whose fields are fetched together.
PAGE = 500
_ON_MISSING = ("raise", "ignore")
_MISSING = object()


class Page:
    """At most `PAGE` runs of a store, whose fields are fetched together."""

    def __init__(self, store: Store, runs: Sequence[Run]) -> None:
        self.store = store
        self.runs = runs
        self._fetched: set[str] = set()

    def fetch(self, name: str) -> None:
        """Fetch a field of all runs, unless it was fetched before."""
        if name not in self._fetched:
            self._fetched.add(name)
            self.store.prefetch(self.runs, [name])


class Experiment:
    """A past run with incense's attributes: `config`, `info`, `result`, `status`, `start_time` and every other field.

    Mappings have dotted access, `experiment.config.optimizer.lr`, and cannot be changed. Times are datetimes in UTC.

    Attributes:
        id: Its id in the store.
        run: The run, with the whole interface of `runs`.
    """

    def __init__(self, run: Run, page: Page) -> None:
        self.id = id_of(run.id)
        self.run = run
        self._page = page

    def __repr__(self) -> str:
        return f"Experiment(id={self.id}, name={self.run.name})"

    def __getattr__(self, name: str) -> Any:
        """Return a field of the run; AttributeError if the run has no such field."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "captured_out":
            return self.run.output
        if name in RUN_FIELDS:
            self._page.fetch(name)
            value = getattr(self.run, name) if name in PARTS else self.run.get(name)
        else:
            value = self.run.document.get(name)
        if value is None and name not in self.run.document:
            names = () if name in RUN_FIELDS else (*RUN_FIELDS, *self.run.document)
            hint = word_suggestion(name, names, "list them with to_dict()")
            raise AttributeError(f"run {self.id} has no field {name!r}; {hint}")
        return time_of(value) if name in TIMES else freeze(value)

    @functools.cached_property
    def artifacts(self) -> Mapping[str, Artifact]:
        """Files that the run saved, by name.

        Raises:
            StoreError: If the run cannot be read.
        """
        details = self.run.artifact_details()
        return {
            name: make_artifact(
                name, stored, self.run.id, details.get(name, {}).get("content_type") or mimetypes.guess_type(name)[0]
            )
            for name, stored in self.run.artifacts.items()
        }

    @functools.cached_property
    def metrics(self) -> Mapping[str, pandas.Series]:
        """All points of its metrics, by name: values indexed by step; each is read when it is first used.

        Raises:
            StoreError: If the run cannot be read.
        """
        return _Metrics(self.run)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain dicts and lists, with times as datetimes.

        Raises:
            StoreError: If the run cannot be read.
        """
        for name in PARTS:
            self._page.fetch(name)
        document = to_plain(self.run.document)
        times = {name: time_of(document[name]) for name in TIMES & document.keys()}
        parts = {name: to_plain(getattr(self.run, name)) for name in PARTS}
        return {**document, "_id": self.id, **times, **parts, "captured_out": self.run.output}

    def delete(self, confirmed: bool = False) -> Removed | None:
        """Remove the run for good.

        Args:
            confirmed: Remove it without asking on the terminal or in the notebook; see `QuerySet.delete`.

        Returns:
            The removed files and documents; None if the answer was not `y`.
        """
        return QuerySet([self]).delete(confirmed)


class _Metrics(Mapping[str, Any]):
    def __init__(self, run: Run) -> None:
        self._run = run
        self._names = run.metrics
        self._read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> pandas.Series:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = _series(name, self._run.metric(name))
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<metrics of run {self._run.id}: {', '.join(self._names) or 'none'}>"


def _series(name: str, points: Series) -> pandas.Series:
    import pandas

    return pandas.Series(points.values, index=pandas.Index(points.steps, name="step"), name=name)


class ArtifactIndexer:
    """The artifacts of the experiments of a query set: `artifacts["model.pt"]`, `artifacts.filter("*.png")`."""

    def __init__(self, experiments: Iterable[Experiment]) -> None:
        self._experiments = experiments

    def filter(self, pattern: str) -> ArtifactSet:
        """Return the artifacts whose names match a pattern of `fnmatch`, such as `*.png`: any number for each run."""
        artifacts = (artifact for experiment in self._experiments for artifact in experiment.artifacts.values())
        return ArtifactSet(artifact for artifact in artifacts if fnmatch(artifact.name, pattern))

    def __getitem__(self, name: str) -> ArtifactSet:
        """Return the artifact with this name of each experiment; KeyError if one has none."""
        return ArtifactSet(experiment.artifacts[name] for experiment in self._experiments)


class QuerySet(UserList[Experiment]):
    """A list of experiments, with a table and the artifacts of all."""

    def __repr__(self) -> str:
        return f"QuerySet({self.data!r})"

    @property
    def artifacts(self) -> ArtifactIndexer:
        """Their artifacts: `artifacts["model.pt"]`, `artifacts.filter("*.png").save("pictures")`."""
        return ArtifactIndexer(self.data)

    def project(
        self,
        on: Sequence[str | tuple[str, ...] | Mapping[Any, Callable[[Any], Any]]],
        rename: str | None = "last",
        on_missing: str = "raise",
    ) -> pandas.DataFrame:
        """Return a data frame: a row for each experiment, indexed by `exp_id`, and a column for each path.

        Args:
            on: Paths such as `config.optimizer.lr`, or tuples where names hold dots. A mapping of a path to a function
                gives the result of the function, as `{"metrics.val/loss": min}`.
            rename: `last` names columns by the last part of their path, None by the whole path; the name of a function
                is appended with `_`.
            on_missing: `raise`, or `ignore`, which gives None.

        Raises:
            FilterError: If an experiment lacks a path, or an argument is none of these.
        """
        import pandas

        for argument, got, expected in (("rename", rename, ("last", None)), ("on_missing", on_missing, _ON_MISSING)):
            if got not in expected:
                raise FilterError(f"{argument}: got {got!r}, expected {' or '.join(map(repr, expected))}")
        columns = []
        for path, reduce in _functions(on).items():
            name = path[-1] if rename == "last" else ".".join(path)
            name += "" if reduce is None else f"_{reduce.__name__}"
            columns.append(pandas.Series(list(self._column(path, reduce, on_missing)), name=name))
        index = pandas.Index([experiment.id for experiment in self.data], name="exp_id")
        frame = pandas.concat(columns, axis=1) if columns else pandas.DataFrame(index=range(len(index)))
        return frame.set_index(index)

    def _column(self, path: tuple[str, ...], reduce: Callable[[Any], Any] | None, on_missing: str) -> Iterator[Any]:
        for experiment, value in self._at(path):
            if value is _MISSING and on_missing == "raise":
                raise FilterError(
                    f"run {experiment.id} has no {'.'.join(path)!r}; name another path, or set on_missing='ignore'"
                )
            yield None if value is _MISSING else value if reduce is None else reduce(value)

    def _at(self, path: tuple[str, ...]) -> Iterator[tuple[Experiment, Any]]:
        """Yield the value of each experiment at a path; memory holds one metric at a time."""
        if path[0] != "metrics" or len(path) != 2:
            for experiment in self.data:
                yield experiment, functools.reduce(_entry, path, experiment)
            return
        for store, group in groupby(self.data, lambda experiment: experiment.run.store):
            experiments = list(group)
            series = store.each_series([experiment.run for experiment in experiments], path[1])
            for experiment, (_, points) in zip(experiments, series, strict=True):
                yield experiment, _MISSING if points is None else _series(path[1], points)

    def delete(self, confirmed: bool = False) -> Removed | None:
        """Remove the runs for good, with their metrics and artifacts, and empty the set.

        Args:
            confirmed: Remove them without asking on the terminal or in the notebook.

        Returns:
            The removed files and documents of the first store; None if the answer was not `y`.

        Raises:
            StoreError: If a run is running, in which case none is removed; or if the store cannot be written.
        """
        if not confirmed and input(f"Are you sure you want to delete {self}? [y/N]") != "y":
            return None
        removed = None
        for store, group in groupby(self.data, lambda experiment: experiment._page.store):
            result = store.remove([experiment.run for experiment in group])
            removed = removed or result
        self.data = []
        return removed


def _functions(
    on: Sequence[str | tuple[str, ...] | Mapping[Any, Callable[[Any], Any]]],
) -> dict[tuple[str, ...], Callable[[Any], Any] | None]:
    """Return the function of each path of `QuerySet.project`; None for the value itself."""
    functions: dict[tuple[str, ...], Callable[[Any], Any] | None] = {}
    for entry in on:
        pairs = entry.items() if isinstance(entry, Mapping) else [(entry, None)]
        functions |= {tuple(path.split(".")) if isinstance(path, str) else path: reduce for path, reduce in pairs}
    return functions


def _entry(value: Any, name: str) -> Any:
    """Return an entry of a mapping, an item of a list, or an attribute; `_MISSING` if it does not exist."""
    if isinstance(value, Mapping):
        return value.get(name, _MISSING)
    if isinstance(value, list):
        return value[int(name)] if name.isdecimal() and int(name) < len(value) else _MISSING
    return getattr(value, name, _MISSING)


class ExperimentLoader(contextlib.AbstractContextManager["ExperimentLoader"]):
    """Finds past runs with the methods of incense's loader, in a database or a folder.

    Notebooks written for incense 0.0.15 run with `from sacristan.runs import ExperimentLoader` instead of its import.
    The differences: folders can be read, metrics have all their points, nothing is unpickled, fields are fetched when
    they are used, results are not cached, and a field that no run has is rejected with the nearest name.

    Example:
        from sacristan.runs import ExperimentLoader

        with ExperimentLoader("my_runs") as loader:
            experiment = loader.find_latest()
            print(experiment.config.optimizer.lr, experiment.metrics["train/loss"].min())
            table = loader.find_by_config_key("optimizer.name", "Adam").project(
                on=["config.optimizer.lr", "result", {"metrics.val/loss": min}], on_missing="ignore"
            )
            print(table)
    """

    def __init__(
        self,
        mongo_uri: str | Path | None = None,
        db_name: str | None = None,
        unpickle: bool = False,
    ) -> None:
        """Open a store.

        Args:
            mongo_uri: A `mongodb://` URL, or a folder of runs; by default that of `SACRISTAN_STORE`, else `my_runs`.
            db_name: The database, if the URL names none.
            unpickle: False; stored objects are not decoded, because that runs code.

        Raises:
            StoreError: If the store cannot be opened, or `unpickle` is set.
        """
        if unpickle:
            raise StoreError("got unpickle=True, expected False: decoding stored objects runs code")
        self.store: Store = open_store(mongo_uri if db_name is None else _with_database(str(mongo_uri), db_name))

    def __repr__(self) -> str:
        return f"ExperimentLoader({self.store.where!r})"

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def cache_clear(self) -> None:
        """Do nothing, as nothing is cached; notebooks for incense call it."""

    def find_by_id(self, experiment_id: int | str) -> Experiment:
        """Return one experiment.

        Args:
            experiment_id: Its id in the store, or its uid.

        Raises:
            RunNotFoundError: If no run has this id.
        """
        return self._query_set([self.store.get(experiment_id)])[0]

    def find_by_ids(self, experiment_ids: Iterable[int | str]) -> QuerySet:
        """Return experiments in the order of their ids.

        Args:
            experiment_ids: Their ids in the store, or their uids.

        Raises:
            RunNotFoundError: If no run has one of these ids.
        """
        return self._query_set(list(map(self.store.get, experiment_ids)))

    def find_by_name(self, name: str) -> QuerySet:
        """Return the experiments whose name matches.

        Args:
            name: A regular expression, which may match a part of the name.

        Raises:
            FilterError: If it is no regular expression.
        """
        return self.find_by_key("experiment.name", name)

    def find_by_config_key(self, key: str, value: str | numbers.Real) -> QuerySet:
        """Return the experiments that match in an entry of their config.

        Args:
            key: The dotted name of the entry, such as `optimizer.lr`.
            value: A text is a regular expression to search for; a number must be equal.

        Raises:
            FilterError: If no run has the entry, or the value is neither a text nor a number.
        """
        return self.find_by_key(f"config.{key}", value)

    def find_by_key(self, key: str, value: str | numbers.Real) -> QuerySet:
        """Return the experiments that match in one field.

        Args:
            key: A field, such as `status` or `config.optimizer.lr`.
            value: A text is a regular expression to search for; a number must be equal.

        Raises:
            FilterError: If no run has the field, or the value is neither a text nor a number.
        """
        if isinstance(value, str):
            return self.find({key: {"$regex": value}})
        if isinstance(value, numbers.Real):
            return self.find({key: value})
        raise FilterError(
            f"{key}: got the value {value!r}, expected a text, which is a regular expression, or a number"
        )

    def find_all(self) -> QuerySet:
        """Return all experiments, in the order of their ids."""
        return self._query_set(self.store.find(sort=None))

    def find_latest(self, n: int = 1, attr: str = "start_time") -> Experiment | QuerySet:
        """Return the newest experiment, or a query set of `n` of them.

        Args:
            n: Maximum number of experiments.
            attr: The field to sort by, greatest first.

        Raises:
            FilterError: If no run has the field.
        """
        newest = self._query_set(self.store.find(sort=f"-{attr}", limit=n))
        return newest[0] if len(newest) == 1 else newest

    def find(self, query: Any) -> QuerySet:
        """Return the experiments that match a query.

        Args:
            query: A query as in MongoDB, or any other filter of `Store.find`.

        Raises:
            FilterError: If the query is invalid.
        """
        return self._query_set(self.store.find(query, sort=None))

    def _query_set(self, runs: Sequence[Run]) -> QuerySet:
        pages = [Page(self.store, runs[start : start + PAGE]) for start in range(0, len(runs), PAGE)]
        return QuerySet([Experiment(run, page) for page in pages for run in page.runs])


def _with_database(url: str, name: str) -> str:
    address, mark, options = url.partition("?")
    scheme, separator, rest = address.partition("://")
    if not separator:
        raise StoreError(f"got db_name={name!r} with {url!r}, expected a mongodb:// URL for a database")
    return f"{scheme}://{rest.partition('/')[0]}/{quote(name)}{mark}{options}"


def incense(where: str | None = None) -> IncenseLoader:
    """Return a loader of incense 0.0.15 on a database of runs; `ExperimentLoader` is the same on every Python.

    These read the records of a `MongoObserver`: `find_by_id`, `find_latest`, `find_by_name`, `find_by_config_key`, and
    of an experiment `config`, `info`, `result`, `metrics`, `artifacts`, `start_time`, `to_dict`. Of a metric it reads
    the first 20,000 points. Objects encoded by jsonpickle are not decoded, because that runs stored code; reading a
    pickled artifact with incense still does.

    Args:
        where: A `mongodb://` URL with the database's name; by default the value of `SACRISTAN_STORE`.

    Returns:
        The loader.

    Raises:
        StoreError: If `where` is no such URL.
        MissingExtraError: If incense is not installed.

    Example:
        loader = incense("mongodb://localhost:27017/lab")
        experiment = loader.find_latest()
        print(experiment.config.lr, experiment.metrics["train/loss"])
    """
    where = where or os.environ.get("SACRISTAN_STORE") or ""
    if not where.startswith(("mongodb://", "mongodb+srv://")):
        raise StoreError(f"incense reads MongoDB only: got {where or 'no store'!r}, expected a mongodb:// URL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its imports
            from incense import ExperimentLoader as IncenseLoader
    except ImportError as error:
        raise MissingExtraError(
            f"incense is not installed ({error}); runs.ExperimentLoader has the same interface"
        ) from error
    import pymongo

    return IncenseLoader(where, pymongo.uri_parser.parse_uri(where)["database"] or "sacred", unpickle=False)
