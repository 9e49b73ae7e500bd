"""Runs on their way into a store: made ready in a folder, and added at once."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from runs.errors import StoreError
from runs.stores.run import Run

__all__ = ["Copied", "StagedRun", "staging_folder"]


@dataclasses.dataclass(frozen=True)
class StagedRun:
    """A whole run in a folder, in the layout of `observers.record.schema`, ready for `Store.add`.

    Attributes:
        folder: The run's folder; the sources, resources and versions of artifacts that it names lie beside it, in
            `_sources`, `_resources` and `_artifacts`. `Store.add` moves them, so it can be added once.
        uid: Its id over all stores, 32 hexadecimal digits.
        left_out: What of the run is not there, a sentence each.
    """

    folder: Path
    uid: str
    left_out: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Copied:
    """A run that was copied or imported, where it is now.

    Attributes:
        run: The run in the store that it was copied to.
        is_new: Whether it was not there before; one that was is left as it is.
        left_out: What could not be taken over, a sentence each.
    """

    run: Run
    is_new: bool
    left_out: tuple[str, ...] = ()


@contextlib.contextmanager
def staging_folder(home: Path | None = None) -> Iterator[Path]:
    """Give an empty folder that goes in the end.

    Args:
        home: The folder to make it in, which is made if need be, and goes with its last; by default that of temporary
            files.

    Raises:
        StoreError: If it cannot be made.
    """
    try:
        if home is not None:
            home.mkdir(exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix="runs-", dir=home))
    except OSError as error:
        raise StoreError(f"{home or 'the folder of temporary files'} cannot be written ({error.strerror})") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if home is not None:
            with contextlib.suppress(OSError):
                home.rmdir()
