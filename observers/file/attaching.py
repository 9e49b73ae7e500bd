"""Attaching observers to an experiment, and finding the folder of a run."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sacred.observers import FileStorageObserver

from observers.file.observer import FileObserver

__all__ = ["file_observer", "run_folder"]


def file_observer(folder: str | Path = "my_runs") -> FileObserver:
    """Return an observer that records runs in `folder`, one numbered folder each."""
    return FileObserver(folder)


@contextlib.contextmanager
def run_folder(run: Any) -> Iterator[Path]:
    """Give the folder that the run is recorded in; for an unobserved run, one that is removed afterwards."""
    recorded = next((Path(o.dir) for o in run.observers if isinstance(o, FileStorageObserver) and o.dir), None)
    if recorded is not None:
        yield recorded
        return
    with tempfile.TemporaryDirectory(prefix="sacristan-") as folder:
        yield Path(folder)
