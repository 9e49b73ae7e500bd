"""Importing past runs of other trackers.

A run keeps its times and steps. `imported` in its record names the tracker, the run's key there and the source; its uid
is computed from the key, so importing again adds nothing. A run whose source has changed is replaced by the new one,
which takes over its tags and note; the old one goes to the trash.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Literal

from runs.errors import ForeignError, MissingExtraError, RunNotFoundError
from runs.query.flattening import mapping_of
from runs.stores.notes import check_tags
from runs.stores.run import Run
from runs.stores.store import Store
from runs.transfer.imported_record import StagedImport, start_of
from runs.transfer.trackers import reader_for
from runs.transfer.trackers.foreign_run import ForeignRun, Found, as_plain
from runs.transfer.trackers.source_files import is_incomplete

__all__ = ["ImportedRun", "import_foreign"]

# Before and after 1970, in seconds: 1,900 years, which is as far as records can tell times.
_FAR_S = 6e10


@dataclasses.dataclass(frozen=True)
class ImportedRun:
    """The outcome for one run of a source.

    Attributes:
        place: Where it was found.
        outcome: `new`; `completed`, if it replaces what an earlier import read; `present`, if nothing has changed; or
            `failed`.
        id: Its id in the store; None if it failed, or in a dry run.
        num_points: Number of its points.
        left_out: A sentence for each part that could not be imported, or the reason why it failed.
    """

    place: str
    outcome: Literal["new", "completed", "present", "failed"]
    id: str | None = None
    num_points: int = 0
    left_out: tuple[str, ...] = ()


def import_foreign(
    path: str | Path, store: Store, kind: str | None = None, tags: Collection[str] = (), *, dry: bool = False
) -> Iterator[ImportedRun]:
    """Import the runs of another tracker from a file or folder, one by one; a run that cannot be read hides no others.

    Nothing is written to the source, and nothing in it is executed. An interrupted import can be repeated.

    Args:
        path: The file or folder.
        store: The store to import into.
        kind: The tracker, see `runs.transfer.trackers.READERS`; None to look at the path.
        tags: Tags for the imported runs.
        dry: Whether to read everything and write nothing.

    Yields:
        The outcome for each run.

    Raises:
        ForeignError: If the path holds no runs of a known tracker.
        MissingExtraError: If the package that reads it is not installed.
        StoreError: If the store cannot be written; runs before stay imported.

    Example:
        with open_store("my_runs", create=True) as store:
            for imported in import_foreign("metrics.csv", store, tags=["old"]):
                print(imported.place, imported.outcome, imported.left_out)
    """
    check_tags(tags)
    path = Path(path)
    reader = reader_for(path, kind)
    discarded = frozenset(run.uid for run in store.trash())
    is_empty = True
    with contextlib.ExitStack() as stack:
        # One folder for all, as making and removing one takes longer than adding a run; none if all are there.
        staging = functools.cache(lambda: stack.enter_context(store.staging()))
        for found in reader.find(path):
            is_empty = False
            yield _import(found, reader.KIND, store, tags, discarded, None if dry else staging)
    if is_empty:
        raise ForeignError(f"{path} holds no runs of the kind {reader.KIND}")


def _import(
    found: Found,
    kind: str,
    store: Store,
    tags: Collection[str],
    discarded: Collection[str | None],
    staging: Callable[[], Path] | None,
) -> ImportedRun:
    """Import a run; without `staging`, write nothing."""
    if is_incomplete(Path(found.place)):
        return _failed(found, "its export was interrupted; export the run again, then import the result")
    try:
        run = _read(found)
        digest = _digest(run)
    except ForeignError as error:
        return _failed(found, str(error))
    except OSError as error:
        return _failed(found, f"{error.filename}: {error.strerror}")
    uid = _uid(kind, found.key)
    present = store.backend.run_of_uid(uid)
    if present is None and uid in discarded and staging is not None:
        present = _restored(store, uid)
    if present is not None and mapping_of(present.document.get("imported")).get("digest") == digest:
        return ImportedRun(found.place, "present", present.id, run.num_points, tuple(run.left_out))
    outcome: Literal["new", "completed", "present"] = "new" if present is None else "completed"
    if staging is None:
        return ImportedRun(found.place, outcome, None, run.num_points, tuple(run.left_out))
    imported = {"kind": kind, "key": found.key, "source": found.place, "digest": digest}
    folder = staging() / uid
    staged = StagedImport(run, uid, imported, folder, tags, present).write()
    if present is not None:
        store.discard([present])
    added = store.add(staged)
    shutil.rmtree(folder, ignore_errors=True)  # unless it was moved
    if not added.is_new:  # another process was faster
        outcome = "present"
    return ImportedRun(found.place, outcome, added.run.id, run.num_points, staged.left_out)


def _restored(store: Store, uid: str) -> Run | None:
    """Return a run from the trash, where a user put it; or an import that was killed before it added the new one."""
    with contextlib.suppress(RunNotFoundError):  # then tags and note would be lost
        return store.restore(uid)
    return None


def _failed(found: Found, reason: str) -> ImportedRun:
    return ImportedRun(found.place, "failed", left_out=(reason,))


def _read(found: Found) -> ForeignRun:
    try:
        run = found.read()
        run.config, run.info = as_plain({"config": run.config, "info": run.info}).values()
    except (ForeignError, MissingExtraError, OSError):
        raise
    except Exception as error:  # parsers raise what they meet
        raise ForeignError(f"its content is invalid ({type(error).__name__}: {error})") from error
    for time in (start_of(run), run.stopped or 0.0):
        if not abs(time) < _FAR_S:
            raise ForeignError(f"got the time {time:g}, expected seconds since 1970")
    return run


def _uid(kind: str, key: str) -> str:
    """Return a uid for a run, always the same; its beginning is no time, unlike that of the lab's own runs."""
    return hashlib.sha256(f"{kind}\0{key}".encode()).hexdigest()[:32]


def _digest(run: ForeignRun) -> str:
    """Return a SHA-256 of everything that is imported of a run, but for the contents of its files."""
    digest = hashlib.sha256()
    plain = {
        field.name: getattr(run, field.name)
        for field in dataclasses.fields(run)
        if field.name not in ("curves", "media", "artifacts", "output")
    }
    digest.update(json.dumps(plain, sort_keys=True, default=str).encode())
    digest.update(run.output)
    for curve in run.curves:
        digest.update(curve.name.encode())
        for array in (curve.steps, curve.values, curve.times):
            digest.update(array.tobytes())
    for entry in run.media:
        digest.update(f"{entry.name}\0{entry.step}\0{entry.content and entry.content.sha256}".encode())
    for name, path in sorted(run.artifacts.items()):
        status = path.stat()
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return digest.hexdigest()
