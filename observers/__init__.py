"""What writes a run down.

For now Sacred's own file observer; the lab's recorders take its place behind the same functions.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sacred.observers import FileStorageObserver, RunObserver

__all__ = ["file_observer", "run_folder"]


def file_observer(folder: str | Path = "my_runs") -> RunObserver:
    """Return an observer that records runs in `folder`, one numbered folder each."""
    return FileStorageObserver(folder)


@contextlib.contextmanager
def run_folder(run: Any) -> Iterator[Path]:
    """Give the folder that the run is recorded in; for an unobserved run, one that is removed afterwards."""
    recorded = next((Path(o.dir) for o in run.observers if isinstance(o, FileStorageObserver) and o.dir), None)
    if recorded is not None:
        yield recorded
        return
    with tempfile.TemporaryDirectory(prefix="sacristan-") as folder:
        yield Path(folder)
