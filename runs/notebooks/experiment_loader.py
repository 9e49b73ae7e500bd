"""`ExperimentLoader`: incense's interface to past runs, over every store and on every Python."""

from __future__ import annotations

import contextlib
import numbers
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sacristan.runs.errors import FilterError, MissingExtraError, StoreError
from sacristan.runs.notebooks.query_sets import PAGE, Experiment, Page, QuerySet
from sacristan.runs.stores.opening import open_store
from sacristan.runs.stores.run import Run

if TYPE_CHECKING:
    from incense import ExperimentLoader as IncenseLoader

    from sacristan.runs.stores.store import Store

__all__ = ["ExperimentLoader", "incense"]


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
                on=["config.optimizer.lr", "result", {"metrics.val/loss": min}]
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
