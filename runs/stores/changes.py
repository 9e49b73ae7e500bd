"""Changes of a store: runs that are staged and then added in one step, and results of adding and removing runs."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from sacristan.observers.errors import ArtifactError
from sacristan.observers.record.stored_files import make_shared
from sacristan.runs.errors import StoreError, naming_os_errors

__all__ = ["GRACE_S", "Added", "Discarded", "Removed", "StagedRun", "explaining_failure", "staging_folder"]


@dataclasses.dataclass(frozen=True)
class StagedRun:
    """A whole run in a folder, in the layout of `sacristan.observers.record.schema`, ready for `Store.add`.

    Attributes:
        folder: The run's folder; the sources, resources and versions of artifacts that it names lie beside it, in
            `_sources`, `_resources` and `_artifacts`. `Store.add` moves them, so a staged run can be added once.
        uid: Its globally unique id, 32 hexadecimal digits.
        left_out: A sentence for each part of the run that is missing.
    """

    folder: Path
    uid: str
    left_out: tuple[str, ...] = ()


class Added(NamedTuple):
    """Result of adding a staged run: its id, whether the store lacked it before, and `Copied.left_out`."""

    id: str
    is_new: bool
    left_out: tuple[str, ...] = ()


@contextlib.contextmanager
def staging_folder(home: Path | None = None) -> Iterator[Path]:
    """Create an empty folder, and delete it at the end of the `with` block.

    It lies in `home`, which is created if missing and deleted when empty, or in the system's folder for temporary
    files.
    """
    with naming_os_errors(f"{home or 'the folder of temporary files'} cannot be written"):
        if home is not None:
            make_shared(home, home.parent)
        path = Path(tempfile.mkdtemp(prefix="runs-", dir=home))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if home is not None:
            with contextlib.suppress(OSError):
                home.rmdir()


@contextlib.contextmanager
def explaining_failure(where: str) -> Iterator[None]:
    """Turn errors of adding a staged run in the `with` block into a StoreError that names the store."""
    try:
        yield
    except ArtifactError as error:
        raise StoreError(str(error)) from error
    except OSError as error:
        raise StoreError(f"{where} cannot be written ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise StoreError(f"the record of the run is damaged ({type(error).__name__}: {error})") from error


# A starting run may be about to name a content touched so recently.
GRACE_S = 3600.0


@dataclasses.dataclass
class Removed:
    """Result of removing runs and reclaiming files.

    Attributes:
        runs: Ids of the removed runs.
        num_contents: Number of reclaimed files: contents, and half-written files of killed processes.
        num_bytes: Their size.
        num_young: Number of unused contents that stay because they were touched within the last hour.
        unreadable: Ids of runs with an unreadable record, which may name any content, so that none is reclaimed.
        kept: Ids of runs in the trash that could not be deleted.
    """

    runs: list[str] = dataclasses.field(default_factory=list)
    num_contents: int = 0
    num_bytes: int = 0
    num_young: int = 0
    unreadable: list[str] = dataclasses.field(default_factory=list)
    kept: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Discarded:
    """A run in the trash.

    Attributes:
        id: The id that it had in the store.
        uid: Its uid; None for a run of stock Sacred.
        at: When it was discarded, in UTC.
        by: Who discarded it; empty if its record does not tell.
    """

    id: str
    uid: str | None
    name: str
    status: str
    at: datetime
    by: str = ""

    @property
    def key(self) -> str:
        """Its uid, or its former id, with which `Store.restore` brings it back."""
        return self.uid or self.id
