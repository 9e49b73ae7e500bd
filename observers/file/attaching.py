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
    """Return an observer that records each run in a numbered folder below `folder`, as `-F FOLDER` does.

        ex.observers.append(file_observer("my_runs"))

    Args:
        folder: The folder of runs; created when the first run starts. Relative paths are below the working folder.
    """
    return FileObserver(folder)


@contextlib.contextmanager
def run_folder(run: Any) -> Iterator[Path]:
    """Give the folder that a run is recorded in, in a `with` block.

        with run_folder(_run) as folder:
            (folder / "notes.txt").write_text("...")

    A run without a `FileObserver` gets a temporary folder, which is removed at the end of the block.

    Args:
        run: The `_run` of a captured function.
    """
    recorded = next((Path(o.dir) for o in run.observers if isinstance(o, FileStorageObserver) and o.dir), None)
    if recorded is not None:
        yield recorded
        return
    with tempfile.TemporaryDirectory(prefix="sacristan-") as folder:
        yield Path(folder)
