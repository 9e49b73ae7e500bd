"""Leftovers of killed processes in a folder of runs: half-removed folders and half-written files."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from sacristan.observers.artifacts.intake import sweep_incoming
from sacristan.observers.artifacts.store import ARTIFACTS
from sacristan.observers.record.identity import is_alive, read_lease
from sacristan.observers.record.locking import is_locked
from sacristan.observers.record.run_folder import as_number
from sacristan.runs.query.index.scanning import run_folders
from sacristan.runs.stores.changes import Removed

__all__ = ["INCOMING", "OUTGOING", "UNFINISHED", "delete", "is_older", "sweep_folders", "sweep_unfinished"]

# Folders for runs on their way out and in. Two levels down, nothing in them is taken for a run.
OUTGOING, INCOMING = ".removing", ".taking"
# Temporary files of `sacristan.observers.record.files.replacing`.
UNFINISHED = re.compile(r"\..*\.tmp", re.DOTALL)


def sweep_folders(store: Path, oldest: float) -> None:
    """Delete leftovers of killed removals, copies and imports, and numbered folders without a run.

    What changed after `oldest`, in seconds since the epoch, stays, except for removals.
    """
    for name in (OUTGOING, INCOMING):
        with contextlib.suppress(OSError):
            for path in list((store / name).iterdir()):
                # A removal is never resumed; a copy may still be running.
                if name == OUTGOING or _last_change(path) < oldest:
                    delete(path)
            (store / name).rmdir()
    _sweep_numbers(store, oldest)


def _sweep_numbers(store: Path, oldest: float) -> None:
    """Delete numbered folders that were claimed for runs but never written."""
    with contextlib.suppress(OSError):
        for path in store.iterdir():
            if as_number(path.name) is not None and path.is_dir() and path.stat().st_mtime < oldest:
                with contextlib.suppress(OSError):
                    path.rmdir()


def _last_change(path: Path) -> float:
    times = [path.lstat().st_mtime]
    for where, folders, files in os.walk(path):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                times.append(Path(where, name).lstat().st_mtime)
    return max(times)


def sweep_unfinished(store: Path, removed: Removed, oldest: float, named: Collection[str]) -> None:
    """Delete half-written files in runs and in the store of artifacts.

    Files that changed after `oldest`, in seconds since the epoch, stay, and so do those of living and of unreadable
    runs. Files whose names are in `named`, the last parts of all recorded names, stay as well: an artifact may have any
    name.
    """
    sizes = sweep_incoming(store / ARTIFACTS)
    for folder in run_folders(store):
        lease = read_lease(folder)
        is_living = is_locked(folder) or (lease is not None and is_alive(lease))
        if is_living or folder.relative_to(store).as_posix() in removed.unreadable:
            continue
        for path in _unfinished_files(folder):
            if path.name not in named and is_older(path, oldest):
                with contextlib.suppress(OSError):
                    num_bytes = path.lstat().st_size
                    path.unlink()
                    sizes.append(num_bytes)
    removed.num_contents += len(sizes)
    removed.num_bytes += sum(sizes)


def _unfinished_files(folder: Path) -> Iterator[Path]:
    for where, _, files in os.walk(folder):
        yield from (Path(where, name) for name in files if UNFINISHED.fullmatch(name))


def delete(path: Path) -> None:
    """Delete a file, a folder or a link; what cannot be deleted is left for the next sweep."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def is_older(path: Path, oldest: float) -> bool:
    """Tell whether a file exists and has not changed since a time in seconds since the epoch."""
    try:
        return path.stat().st_mtime < oldest
    except OSError:
        return False
