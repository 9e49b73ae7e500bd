"""Runs' folders below a store, and JSON files that may be missing or damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sacristan.observers.record.schema import RUN
from sacristan.runs.errors import StoreAwayError, StoreError

__all__ = ["SPOOL", "SPOOLED", "has_record", "require_folder", "run_folders"]

SPOOL, SPOOLED = "_spool", "run"


def run_folders(store: Path) -> Iterator[Path]:
    """Yield the folder of every run in a store, including those in its spool.

    They are in the order of their names, 9 before 10; those of spools come last.
    """
    require_folder(store)
    yield from sorted(filter(has_record, store.iterdir()), key=lambda p: (len(p.name), p.name))
    # A spool has a folder for each run, which is a store of its own.
    yield from sorted(path.parent for where in (store, store / SPOOL) for path in where.glob(f"*/{SPOOLED}/{RUN}"))


def has_record(folder: Path) -> bool:
    """Tell whether a folder holds a run; an unreadable folder counts as one."""
    try:
        (folder / RUN).lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def require_folder(store: Path) -> None:
    """Check that a folder of runs exists and can be listed and entered.

    A missing one raises StoreAwayError, another problem StoreError.
    """
    try:
        if not store.is_dir():
            raise StoreAwayError(
                f"there is no folder {store}; give the folder or URL that runs are recorded in (--store), or start a "
                "run, which creates my_runs"
            )
        with os.scandir(store):
            (store / RUN).exists()
    except PermissionError as error:
        raise StoreError(f"{store} cannot be read ({error.strerror}); check its permissions") from error
