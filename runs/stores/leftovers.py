"""Leftovers of killed processes in a folder of runs: what was about to go, and what is not whole."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from observers.artifacts.intake import sweep_incoming
from observers.artifacts.store import ARTIFACTS
from observers.record.identity import is_alive, read_lease
from observers.record.locking import is_locked
from observers.record.numbered_folder import as_number
from runs.query.index.folders import run_folders
from runs.stores.removing import Removed

__all__ = ["INCOMING", "OUTGOING", "UNFINISHED", "delete", "is_older", "sweep_folders", "sweep_unfinished"]

# Folders of the store, two levels above what would be taken for a run: what goes, and what is not whole yet.
OUTGOING, INCOMING = ".removing", ".taking"
# Files that `replacing` writes.
UNFINISHED = re.compile(r"\..*\.tmp", re.DOTALL)


def sweep_folders(store: Path, oldest: float) -> None:
    """Delete what killed removals, copies and imports left, and numbers that no run came for."""
    for name in (OUTGOING, INCOMING):
        with contextlib.suppress(OSError):
            for path in list((store / name).iterdir()):
                # What goes is of no use to anybody; what comes may be coming yet.
                if name == OUTGOING or _last_change(path) < oldest:
                    delete(path)
            (store / name).rmdir()
    with contextlib.suppress(OSError):
        for path in store.iterdir():
            # A number that was taken for a run which never came.
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
    """Delete files that killed processes left half-written in runs, and in the store of artifacts.

    Args:
        store: The folder of runs.
        removed: Is told what is gone, and knows which runs cannot be read: what these hold is kept.
        oldest: What changed later is kept, and what a living run holds.
        named: The last parts of the names that records hold: artifacts may have any name.
    """
    gone = sweep_incoming(store / ARTIFACTS)
    for folder in run_folders(store):
        lease = read_lease(folder)
        is_living = is_locked(folder) or (lease is not None and is_alive(lease))
        if is_living or folder.relative_to(store).as_posix() in removed.unreadable:
            continue
        for where, _, files in os.walk(folder):
            for name in files:
                path = Path(where, name)
                if UNFINISHED.fullmatch(name) and name not in named and is_older(path, oldest):
                    with contextlib.suppress(OSError):
                        num_bytes = path.lstat().st_size
                        path.unlink()
                        gone.append(num_bytes)
    removed.num_contents += len(gone)
    removed.num_bytes += sum(gone)


def delete(path: Path) -> None:
    """Delete a folder, or a link to one; what cannot be deleted stays for the next time."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def is_older(path: Path, oldest: float) -> bool:
    """Tell whether a file is there that did not change since `oldest`."""
    try:
        return path.stat().st_mtime < oldest
    except OSError:
        return False
