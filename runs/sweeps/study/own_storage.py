"""Optuna storages that a sweep names for its study: `shared_storage` for agents, `own_storage` for readers.

A reader never writes. A record may come from anybody, and so may the name of a storage in it. So a reader opens only a
file that lies among the runs, beside them or below the folder that it was started in, and never connects to another
machine.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from sacristan.runs.errors import RunsError, SweepError, needing_extra
from sacristan.runs.sweeps.spec.definition import Definition

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["check_storage", "has_study", "own_storage", "shared_storage"]


def shared_storage(url: str) -> BaseStorage:
    """Return the storage of a URL as agents open it; connections to a SQLite file are closed after each use."""
    from optuna.exceptions import OptunaError
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    is_file = url.startswith("sqlite") and not url.endswith((":memory:", "://"))
    try:
        return RDBStorage(url, {"poolclass": NullPool} if is_file else None)
    except (OptunaError, SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
        cause = error.__cause__ or error
        why = str(getattr(cause, "orig", None) or cause).strip().partition("\n")[0]
        raise SweepError(
            f"sweep.storage: got {url!r}, which cannot be opened ({why}); expected the URL of an Optuna storage, such "
            "as sqlite:///study.db"
        ) from error


def check_storage(definition: Definition) -> None:
    """Reject a `storage` that cannot be opened; a definition without one keeps its study beside the runs."""
    if definition.storage:
        shared_storage(definition.storage)


def has_study(definition: Definition) -> bool:
    """Tell whether the storage that a sweep names has its study, such as one copied from another storage."""
    import optuna

    return definition.id in optuna.get_all_study_names(shared_storage(definition.storage))


@contextlib.contextmanager
def own_storage(definition: Definition, folders: Sequence[Path]) -> Iterator[BaseStorage]:
    """Open the storage of a sweep's own, a SQLite file in one of the `folders`, or below."""
    path = _path(definition, folders)
    with needing_extra("sweeps", "a sweep"):
        from optuna.exceptions import StorageInternalError
        from optuna.storages import RDBStorage
        from sqlalchemy.exc import SQLAlchemyError
        from sqlalchemy.pool import NullPool

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, check_same_thread=False)

    try:
        # No connection is left open, not even by what fails.
        yield RDBStorage("sqlite://", {"creator": connect, "poolclass": NullPool}, skip_table_creation=True)
    except RunsError:
        raise
    except (StorageInternalError, SQLAlchemyError, RuntimeError) as error:  # RuntimeError of tables of another version
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        why = getattr(cause, "orig", cause)
        raise SweepError(f"sweep {definition.id}: {path} cannot be read as an Optuna storage ({why})") from error


def _path(definition: Definition, folders: Sequence[Path]) -> Path:
    """Return the file that a URL of SQLite names, from the folder that the sweep was started in."""
    kind, _, rest = definition.storage.partition("://")
    if kind.partition("+")[0] != "sqlite":
        raise SweepError(
            f"sweep {definition.id}: its study is on a server ({kind[:20]}), and a record alone makes nobody connect "
            f"to one; draw it with: {_drawing(definition)}"
        )
    name = rest.removeprefix("/").partition("?")[0]
    if not name or name == ":memory:" or name.startswith("file:"):
        raise SweepError(f"sweep {definition.id}: its study is in {definition.storage[:200]!r}, expected a SQLite file")
    path = Path(definition.cwd, name).resolve()
    if not any(path.is_relative_to(folder.resolve()) for folder in folders):
        raise SweepError(
            f"sweep {definition.id}: its study is in {path}, neither beside the runs nor below the folder that the "
            f"board was started in; start the board in {path.parent}, or draw it with: {_drawing(definition)}"
        )
    if not path.is_file():
        raise SweepError(f"sweep {definition.id}: its study is in {path}, which does not exist")
    return path


def _drawing(definition: Definition) -> str:
    return f"{'' if definition.is_script else 'python exp.py '}{definition.action('plot')}"
