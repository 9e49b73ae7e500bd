"""`open_store`: the runs of a folder or of a database, behind one API."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from sacristan.observers.record.redaction import hide_user
from sacristan.runs.errors import StoreError, naming_os_errors
from sacristan.runs.stores import Store
from sacristan.runs.stores.contract import Backend

_GROUP = "sacristan.stores"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_store(where: str | Path | None = None, *, create: bool = False, is_read_only: bool = False) -> Store:
    """Open the runs of a folder or a database; close the store, or use it in a `with` block.

    Args:
        where: A folder, or a `mongodb://` or `mongodb+srv://` URL with the database's name (`sacred` if it has none);
            by default the environment variable `SACRISTAN_STORE`, else `my_runs`. The prefix of the collections' names,
            as in `MongoObserver(collection_prefix="lab")`, follows a `#`: `mongodb://host/database#lab`; so does the
            name in `collection="lab"`. URLs of other schemes are opened by packages that add stores of their own; see
            `sacristan.runs.stores.contract`.
        create: Whether to create a missing folder, to copy or import runs into. A database needs no creating.
        is_read_only: Whether questions write nothing into the folder, not even its index, which then lies in the user's
            cache. Questions never write into a database.

    Returns:
        The store: `find`, `get`, `frame` and so on.

    Raises:
        StoreError: If there is no such folder, it cannot be created, or the database cannot be reached or refuses.

    Example:
        with open_store("my_runs") as store:
            for run in store.find("status=COMPLETED", sort="-val/accuracy.max", limit=3):
                print(run.id, run["optimizer.lr"], run["val/accuracy.max"])
    """
    where = str(where if where is not None else os.environ.get("SACRISTAN_STORE") or "my_runs")
    return Store(open_backend(where, create=create, is_read_only=is_read_only), open_store)


def open_backend(where: str, *, create: bool = False, is_read_only: bool = False) -> Backend:
    """Open what is below a store: the backend of a folder, or of a URL."""
    scheme = _SCHEME.match(where)
    # A mistyped URL may hold a password.
    if scheme is None and (not where or "://" in where or (re.search(":.*@", where) and not Path(where).exists())):
        raise _unknown(where, ())
    opener = _open_folder if scheme is None else _opener(scheme[1], where)
    return opener(where, create=create, is_read_only=is_read_only)


def _opener(scheme: str, where: str) -> Callable[..., Backend]:
    """Return the function that opens URLs of a scheme: one of ours, or an entry point of another package."""
    if scheme in ("mongodb", "mongodb+srv"):
        return _open_database
    from importlib.metadata import entry_points

    points = {point.name: point for point in entry_points(group=_GROUP)}
    if scheme not in points:
        raise _unknown(where, sorted(points))
    return points[scheme].load()


def _unknown(where: str, others: Sequence[str]) -> StoreError:
    expected = ", ".join([*(f"{name}://" for name in ("mongodb", *others))])
    return StoreError(f"got the store {hide_user(where)!r}, expected a folder or a {expected} URL")


def _open_database(url: str, *, create: bool, is_read_only: bool) -> Backend:
    from sacristan.runs.stores.mongo import MongoBackend

    return MongoBackend(url)


def _open_folder(where: str, *, create: bool, is_read_only: bool) -> Backend:
    from sacristan.runs.stores.folders import FolderBackend

    if create:
        with naming_os_errors(f"{where} cannot be made"):
            Path(where).mkdir(parents=True, exist_ok=True)
    return FolderBackend(where, is_read_only=is_read_only)
