"""Runs on their way into a store: staged in a folder, and then added in one step."""

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
            `_sources`, `_resources` and `_artifacts`. `Store.add` moves them, so a staged run can be added once.
        uid: Its globally unique id, 32 hexadecimal digits.
        left_out: A sentence for each part of the run that is missing.
    """

    folder: Path
    uid: str
    left_out: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Copied:
    """A run that was copied or imported.

    Attributes:
        run: The run in the store that received it.
        is_new: Whether the store lacked it before; an existing run stays unchanged.
        left_out: A sentence for each part of the run that could not be copied.
    """

    run: Run
    is_new: bool
    left_out: tuple[str, ...] = ()


@contextlib.contextmanager
def staging_folder(home: Path | None = None) -> Iterator[Path]:
    """Create an empty folder, and delete it at the end of the `with` block.

    Args:
        home: The folder to create it in, which is created if missing and deleted when empty; by default the system's
            folder for temporary files.

    Yields:
        The path of the folder.

    Raises:
        StoreError: If it cannot be created.
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
