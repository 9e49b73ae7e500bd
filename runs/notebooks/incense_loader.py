"""The loader of the package incense, which installs on Python 3.11 only."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

import pymongo

from sacristan.runs.errors import MissingExtraError, StoreError

if TYPE_CHECKING:
    from incense import ExperimentLoader

__all__ = ["incense"]


def incense(where: str | None = None) -> ExperimentLoader:
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
            from incense import ExperimentLoader
    except ImportError as error:
        raise MissingExtraError(
            f"incense is not installed ({error}); runs.ExperimentLoader has the same interface"
        ) from error
    return ExperimentLoader(where, pymongo.uri_parser.parse_uri(where)["database"] or "sacred", unpickle=False)
