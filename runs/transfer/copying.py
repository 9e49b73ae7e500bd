"""Copying runs from any store into any other, with all that they hold; again without effect.

    copied = copy(store.get("3"), open_target("mongodb://host/lab"))

A copy keeps the run's uid. A run of stock Sacred, which has none, gets one that is made from its record, so that
copying it twice makes one. A copy that is killed leaves nothing in a folder that is taken for a run, and in MongoDB a
run that says COPYING, which the next copy finishes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from observers.artifacts.store import ArtifactStore
from observers.artifacts.version import ArtifactError
from observers.mongo.delivery import Delivery
from observers.record.locking import claimed
from observers.record.numbered_folder import make_numbered_folder
from observers.record.schema import MEDIA_FOLDER, OWN_FILES, RUN
from runs.errors import StoreError
from runs.index.folders import read_json
from runs.stores.folder import FolderStore
from runs.stores.folder_removing import INCOMING
from runs.stores.removing import is_living
from runs.stores.run import Run
from runs.stores.store import Store, open_store
from runs.transfer.unloading import Unloaded, unload

if TYPE_CHECKING:
    from runs.stores.mongo import MongoStore

__all__ = ["COPYING", "Copied", "copy", "open_target", "staging_for", "take"]

# The status of a run in a database that is not whole yet.
COPYING = "COPYING"
_ATTEMPTS = 10
_RELATIONS = {"artifacts_logged": "made", "artifacts_used": "used"}


@dataclasses.dataclass(frozen=True)
class Copied:
    """What became of a run.

    Attributes:
        run: The run in the store that it was copied to.
        is_new: Whether it was not there before; one that was is left as it is.
        left_out: What could not be taken over, a sentence each.
    """

    run: Run
    is_new: bool
    left_out: tuple[str, ...] = ()


def open_target(where: str | Path) -> Store:
    """Return the store to copy to; a folder is made if it is not there.

    Raises:
        StoreError: If it cannot be made, or the database cannot be reached or refuses.
    """
    if "://" not in str(where):
        try:
            Path(where).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{where} cannot be made ({error.strerror})") from error
    return open_store(where)


def copy(run: Run, store: Store) -> Copied:
    """Copy a run into `store`.

    Raises:
        StoreError: If it is running, its record cannot be read, or the store cannot be written; then nothing of it is
            there, or in a database a run that says COPYING.
    """
    run = run.store.get(run.id)
    if is_living(run):
        raise StoreError(f"run {run.id} is running; copy it when it has ended")
    if run.status in (COPYING, "REMOVING"):
        raise StoreError(f"run {run.id} is not whole: it says {run.status}; repeat what was interrupted")
    with staging_for(store) as base:
        return take(unload(run, base), store)


@contextlib.contextmanager
def staging_for(store: Store) -> Iterator[Path]:
    """Give a folder for what is not whole yet, from where a run comes into `store` at once; it goes in the end.

    Raises:
        StoreError: If it cannot be made.
    """
    try:
        if isinstance(store, FolderStore):
            home = store.folder / INCOMING
            home.mkdir(exist_ok=True)
            path = tempfile.mkdtemp(dir=home)
        else:
            path = tempfile.mkdtemp(prefix="runs-")
    except OSError as error:
        raise StoreError(f"{store.where} cannot be written ({error.strerror})") from error
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(store, FolderStore):
            with contextlib.suppress(OSError):
                home.rmdir()


def take(unloaded: Unloaded, store: Store) -> Copied:
    """Take an unloaded run into `store`, unless it is there.

    Raises:
        StoreError: If the store cannot be written, or the run is damaged.
    """
    try:
        if isinstance(store, FolderStore):
            return _take_into_folder(unloaded, store)
        return _take_into_database(unloaded, store)
    except ArtifactError as error:
        raise StoreError(str(error)) from error
    except OSError as error:
        raise StoreError(f"{store.where} cannot be written ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise StoreError(f"the record of the run is damaged ({type(error).__name__}: {error})") from error


def _find(store: Store, uid: str) -> Run | None:
    found = store.find([("uid", "==", uid)], limit=1)
    return store.get(found[0].id) if found else None


# ---------------------------------------------------------------------- into a folder


def _take_into_folder(unloaded: Unloaded, store: FolderStore) -> Copied:
    # One at a time, so that nobody takes the same run in between.
    with claimed(store.folder):
        there = _find(store, unloaded.uid)
        if there is not None:
            return Copied(there, is_new=False)
        base = unloaded.folder.parent
        for name in ("_sources", "_resources"):
            _take_contents(base / name, store.folder / name)
        _take_versions(unloaded, base, store.folder)
        folder, number = make_numbered_folder(store.folder)
        # It takes the place of an empty folder at once.
        unloaded.folder.replace(folder)
    return Copied(store.get(number), is_new=True, left_out=tuple(unloaded.left_out))


def _take_contents(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        target.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if (target / path.name).stat().st_size == path.stat().st_size:
                os.utime(target / path.name)
                continue
        path.replace(target / path.name)


def _take_versions(unloaded: Unloaded, base: Path, target: Path) -> None:
    """Take versions of artifacts, and let the record name them by their numbers here."""
    record = read_json(unloaded.folder / RUN)
    if not any(relation in record for relation in _RELATIONS):
        return
    ours, theirs = ArtifactStore(target), ArtifactStore(base)
    for relation, mark in _RELATIONS.items():
        for entry in record.get(relation, ()):
            version = ours.take(theirs.resolve(f"{entry['name']}@{entry['digest']}"))
            ours.note_run(mark, version, unloaded.uid)
            entry["version"] = version.version
    (unloaded.folder / RUN).write_text(json.dumps(record, indent=2))


# ---------------------------------------------------------------------- into a database


def _take_into_database(unloaded: Unloaded, store: MongoStore) -> Copied:
    from runs.stores.mongo_removing import Remover

    there = _find(store, unloaded.uid)
    if there is not None and there.status != COPYING:
        return Copied(there, is_new=False)
    path = unloaded.folder / RUN
    record = json.loads(path.read_bytes())
    with store.errors():
        Remover(store).forget(unloaded.uid)
        path.write_text(json.dumps({**record, "status": COPYING}))
        delivery = Delivery(
            unloaded.folder, unloaded.folder.parent, store.database, store.runs.name.removesuffix("runs").rstrip("_")
        )
        _deliver(delivery, store)
        notes = read_json(unloaded.folder / "notes.json")
        if notes:
            store.runs.update_one({"_id": delivery.run_id, "uid": unloaded.uid}, {"$set": notes})
        # Only now does it say of itself that it is whole.
        path.write_text(json.dumps(record))
        _deliver(delivery, store)
    left_out = [*unloaded.left_out, *_unnamed(unloaded.folder, record)]
    return Copied(store.get(str(delivery.run_id)), is_new=True, left_out=tuple(left_out))


def _deliver(delivery: Delivery, store: MongoStore) -> None:
    for _ in range(_ATTEMPTS):
        delivery.advance(last=True)
        if delivery.is_complete:
            return
    raise StoreError(
        f"the run is in {store.where} as run {delivery.run_id} and not complete: its record is damaged, or others copy "
        "it at the same time"
    )


def _unnamed(folder: Path, record: dict) -> list[str]:
    """Return what to say of files that only a folder can hold."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    known = {*OWN_FILES, "delivered.json", *record["artifacts"]}
    rest = sorted(name for name in names - known if not name.startswith(f"{MEDIA_FOLDER}/"))
    if not rest:
        return []
    shown = ", ".join(map(repr, rest[:3])) + (", ..." if len(rest) > 3 else "")
    return [f"{len(rest)} files of its folder that the record does not name: {shown}"]
