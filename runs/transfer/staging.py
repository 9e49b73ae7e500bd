"""Output that is prepared in a hidden folder beside its place and appears there complete.

A killed process leaves the hidden folder, `.NAME.incomplete`, which the next one with the same output deletes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sacristan.observers.record.files import sync_files, sync_folder
from sacristan.observers.record.locking import claimed
from sacristan.runs.drawing.output_file import check_output, is_stream, writing

__all__ = ["publish", "staging_beside"]


@contextlib.contextmanager
def staging_beside(path: Path) -> Iterator[Path]:
    """Create an empty folder beside an output, or elsewhere if that is a pipe; delete it at the end of the block.

    A second process with the same output waits.
    """
    if is_stream(path):
        with tempfile.TemporaryDirectory(prefix="runs-") as name:
            yield Path(name)
        return
    path = Path(os.path.realpath(path))  # a link stays, and its target is replaced
    home = path.with_name(f".{path.name[:64]}.incomplete")
    home.mkdir(parents=True, exist_ok=True)
    with claimed(home):
        folder = home / "content"
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(home, ignore_errors=True)


def publish(prepared: Path, path: Path, *, overwrite: bool = False) -> None:
    """Move a prepared file or folder to its place, or copy a file into a pipe.

    It lies in the folder of `staging_beside(path)`. A file that is already there is a StoreError unless `overwrite` is
    set; a folder there must be empty.
    """
    if is_stream(path):
        with writing(path, overwrite=overwrite) as stream, prepared.open("rb") as source:
            shutil.copyfileobj(source, stream, 2**20)
        return
    if prepared.is_file():
        check_output(path, overwrite=overwrite)
        sync_files([prepared])
    place = Path(os.path.realpath(path))
    prepared.replace(place)
    sync_folder(place.parent)
