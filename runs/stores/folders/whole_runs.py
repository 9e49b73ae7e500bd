"""Whole runs of a folder: moving staged ones in, removing and restoring them, and leftovers of killed processes.

A run that is removed is moved to a place where no reader looks, and then deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from sacristan.observers.artifacts.intake import sweep_incoming
from sacristan.observers.artifacts.store import ARTIFACTS, RELATIONS, ArtifactStore
from sacristan.observers.errors import ArtifactError
from sacristan.observers.record.copies import is_as_named, make_shared
from sacristan.observers.record.folders import as_number, claimed, is_locked, locked, make_numbered_folder
from sacristan.observers.record.identity import is_alive, read_lease
from sacristan.observers.record.json_text import load_json
from sacristan.observers.record.schema import RUN, newer_format, read_json_if_whole
from sacristan.runs.errors import StoreError
from sacristan.runs.query.index.scanning import SPOOLED, run_folders
from sacristan.runs.stores import Removed, StagedRun


def move_in(staged: StagedRun, store: Path, number: int) -> str:
    """Move a run into a folder of runs: first its contents, then the run, in one step; return its id there.

    The caller has claimed the folder. The id is `number`, or the next free one if that is taken.
    """
    beside = staged.folder.parent
    for name in ("_sources", "_resources"):
        _move_contents(beside / name, store / name)
    _take_versions(staged, beside, store)
    folder, _ = make_numbered_folder(store, number)
    # Replaces an empty folder atomically.
    staged.folder.replace(folder)
    return folder.name


def _move_contents(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        make_shared(target, target.parent)
        if is_as_named(target / path.name):
            os.utime(target / path.name)
        else:
            path.replace(target / path.name)


def _take_versions(staged: StagedRun, beside: Path, store: Path) -> None:
    """Copy versions of artifacts, and write this store's numbers of them into the record."""
    record = read_json_if_whole(staged.folder / RUN)
    if not any(relation in record for relation in RELATIONS):
        return
    target, source = ArtifactStore(store), ArtifactStore(beside)
    for relation, mark in RELATIONS.items():
        for entry in record.get(relation, ()):
            version = target.take(source.resolve(f"{entry['name']}@{entry['digest']}"))
            target.note_run(mark, version, staged.uid)
            entry["version"] = version.version
    (staged.folder / RUN).write_text(json.dumps(record, indent=2))


# Folders for runs on their way out and in. Two levels down, nothing in them is taken for a run.
OUTGOING, INCOMING = ".removing", ".taking"
# Temporary files of `sacristan.observers.record.files.replacing`.
UNFINISHED = re.compile(r"\..*\.tmp", re.DOTALL)


def sweep_folders(store: Path, oldest: float) -> None:
    """Delete leftovers of killed removals, copies and imports, and numbered folders without a run."""
    for name in (OUTGOING, INCOMING):
        with contextlib.suppress(OSError):
            for path in list((store / name).iterdir()):
                # A removal is never resumed; a copy may still be running.
                if name == OUTGOING or _last_change(path) < oldest:
                    delete(path)
            (store / name).rmdir()
    _sweep_numbers(store, oldest)


def _sweep_numbers(store: Path, oldest: float) -> None:
    """Delete numbered folders that were claimed for runs but never written."""
    with contextlib.suppress(OSError):
        for path in store.iterdir():
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
    """Delete half-written files in runs and in the store of artifacts.

    Files that changed after `oldest`, in seconds since the epoch, stay, and so do those of living and of unreadable
    runs. Files whose names are in `named`, the last parts of all recorded names, stay as well: an artifact may have any
    name.
    """
    sizes = sweep_incoming(store / ARTIFACTS, time.time() - oldest)
    for folder in run_folders(store):
        lease = read_lease(folder)
        is_living = is_locked(folder) or (lease is not None and is_alive(lease))
        if is_living or folder.relative_to(store).as_posix() in removed.unreadable:
            continue
        for path in _unfinished_files(folder):
            if path.name not in named and is_older(path, oldest):
                with contextlib.suppress(OSError):
                    num_bytes = path.lstat().st_size
                    path.unlink()
                    sizes.append(num_bytes)
    removed.num_contents += len(sizes)
    removed.num_bytes += sum(sizes)


def _unfinished_files(folder: Path) -> Iterator[Path]:
    for where, _, files in os.walk(folder):
        yield from (Path(where, name) for name in files if UNFINISHED.fullmatch(name))


def delete(path: Path) -> None:
    """Delete a file, a folder or a link; what cannot be deleted is left for the next sweep."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def is_older(path: Path, oldest: float) -> bool:
    """Tell whether a file exists and has not changed since a time in seconds since the epoch."""
    try:
        return path.stat().st_mtime < oldest
    except OSError:
        return False


# Has a folder for each discarded run, in which the run lies as it did in the store.
TRASH = ".trash"
_SHARED = ("_sources", "_resources")
_CONTENT = re.compile(r".*_[0-9a-f]{32}(\.[^/]*)?", re.DOTALL)
_ASIDE = ".removing-"


def remove_folder(store: Path, folder: Path) -> None:
    """Remove a run's folder, and the contents beside one in a spool; after a StoreError, it is unchanged."""
    outgoing = store / OUTGOING
    # A long name with our suffix might be too long.
    target = outgoing / f"{folder.name[:64]}-{secrets.token_hex(4)}"
    _move_away(store, folder, lambda _: target)
    delete(target)
    with contextlib.suppress(OSError):
        outgoing.rmdir()


def discard_folder(store: Path, folder: Path) -> Path:
    """Move a run's folder to the trash and return its place there; after a StoreError, it is unchanged."""
    place = store / TRASH / secrets.token_hex(8)
    _move_away(store, folder, lambda moved: place / moved.relative_to(store))
    return place


def _move_away(store: Path, folder: Path, target_of: Callable[[Path], Path]) -> None:
    try:
        with contextlib.ExitStack() as stack:
            if _is_spooled(store, folder):
                # `sacristan sync` holds the lock while it delivers the run.
                stack.enter_context(locked(folder))
                folder = folder.parent
            target = target_of(folder)
            make_shared(store / target.relative_to(store).parts[0], store)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                folder.rename(target)
            except OSError:
                with contextlib.suppress(OSError):
                    target.parent.rmdir()
                raise
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not folder.exists():
            raise StoreError(f"{folder} is no longer there; another process removed it") from error
        raise StoreError(f"{folder} cannot be removed ({error.strerror}); check its permissions") from error


def _is_spooled(store: Path, folder: Path) -> bool:
    return folder.name == SPOOLED and folder.parent != store


def in_trash(store: Path) -> list[tuple[Path, Path, int]]:
    """Return place, folder and time of discarding (ns since the epoch) of the runs in the trash, last first."""
    discarded = []
    for place in (store / TRASH).glob("*"):
        # Another process took it, or it belongs to another user, who lets nobody look.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, StoreError):
            discarded += [(place, folder, place.stat().st_mtime_ns) for folder in run_folders(place)]
    return sorted(discarded, key=lambda entry: (entry[2], entry[1]), reverse=True)


def restore_folder(store: Path, place: Path, folder: Path) -> str:
    """Move a run out of the trash; return its id: the former one, or the next number if that is taken."""
    moved = folder.parent if _is_spooled(place, folder) else folder
    try:
        with claimed(store):
            target = _free_target(store, moved.relative_to(place), is_spooled=moved is not folder)
            target.parent.mkdir(exist_ok=True)
            moved.rename(target)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not moved.exists():
            former = folder.relative_to(place).as_posix()
            raise StoreError(f"run {former} is no longer in the trash of {store}; another process took it") from error
        raise StoreError(f"{folder} cannot be brought back ({error.strerror}); check its permissions") from error
    shutil.rmtree(place, ignore_errors=True)
    return (target / folder.relative_to(moved)).relative_to(store).as_posix()


def _free_target(store: Path, former: Path, *, is_spooled: bool) -> Path:
    """Return the new path of a run whose path below the store was `former`."""
    target = store / former
    if not target.exists():
        return target
    if is_spooled:
        raise StoreError(f"{target} already exists; move it away, or sync it first")
    numbers = filter(None, (as_number(path.name) for path in store.iterdir()))
    return store / str(1 + max(numbers, default=0))


def _empty_trash(store: Path, oldest: float, removed: Removed) -> None:
    for place, folder, _ in in_trash(store):
        # Moved as a whole first, so that no process can restore half of it.
        target, id = store / OUTGOING / place.name, folder.relative_to(place).as_posix()
        try:
            make_shared(target.parent, store)
            place.rename(target)
        except FileNotFoundError:  # another process took it
            continue
        except OSError:
            removed.kept.append(id)
            continue
        delete(target)
        if target.exists():  # for the next time
            removed.kept.append(id)
            with contextlib.suppress(OSError):
                target.rename(place)
        else:
            removed.runs.append(id)
    with contextlib.suppress(OSError):
        for path in (store / TRASH).iterdir():
            if is_older(path, oldest):  # a run may be about to move into a young one
                delete(path)
        (store / TRASH).rmdir()


def reclaim(store: Path, removed: Removed, grace_s: float, *, empties_trash: bool = False) -> None:
    """Delete leftovers of killed processes, and contents that no run names.

    Contents touched in the last `grace_s` seconds stay. `empties_trash` also deletes the runs in the trash, and
    half-written files.
    """
    oldest = time.time() - grace_s
    if empties_trash:
        _empty_trash(store, oldest, removed)
    sweep_folders(store, oldest)
    with contextlib.suppress(ArtifactError):  # a damaged manifest keeps the contents of removed versions
        sizes, num_young = ArtifactStore(store).reclaim(grace_s)
        removed.num_contents += len(sizes)
        removed.num_bytes += sum(sizes)
        removed.num_young += num_young
    contents = [path for name in _SHARED for path in _contents(store / name, oldest)]
    named, removed.unreadable = _named_contents(store)
    if empties_trash:
        sweep_unfinished(store, removed, oldest, named)
    unused = [path for path in contents if path.name not in named]
    old = [path for path in unused if is_older(path, oldest)]
    removed.num_young += len(unused) - len(old)
    if old and not removed.unreadable:
        _delete_contents(store, old, oldest, removed)


def _delete_contents(store: Path, contents: list[Path], oldest: float, removed: Removed) -> None:
    """Set contents aside, and delete those that no run has named or touched since then."""
    aside = [(path, path.with_name(_ASIDE + path.name)) for path in contents]
    for path, away in aside:
        with contextlib.suppress(OSError):
            path.rename(away)
    # A run that has started since then missed the content and copied it again, or named or touched it before.
    named, unreadable = _named_contents(store)
    for path, away in aside:
        if unreadable or path.name in named or not is_older(away, oldest):
            _put_back(away, path)
            continue
        with contextlib.suppress(OSError):
            num_bytes = away.stat().st_size
            away.unlink()
            removed.num_contents += 1
            removed.num_bytes += num_bytes


def _contents(folder: Path, oldest: float) -> Iterator[Path]:
    """Yield the contents of sources or resources; those that a killed process set aside are put back first."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names are needed
    except OSError:
        return
    _tidy(folder, names, oldest)
    for name in sorted({name.removeprefix(_ASIDE) for name in names}):
        path = folder / name
        if _CONTENT.fullmatch(name) and path.is_file() and not path.is_symlink():
            yield path


def _tidy(folder: Path, names: list[str], oldest: float) -> None:
    """Put back contents that were set aside, and delete half-written ones."""
    for name in names:
        if name.startswith(_ASIDE):
            _put_back(folder / name, folder / name.removeprefix(_ASIDE))
        elif UNFINISHED.fullmatch(name) and is_older(folder / name, oldest):
            delete(folder / name)


def _put_back(away: Path, path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.exists():
            away.unlink()  # a run has copied it again
        else:
            away.rename(path)


def _named_contents(store: Path) -> tuple[set[str], list[str]]:
    """Return the last parts of all names in the runs' records, and the runs whose record cannot be read."""
    named: set[str] = set()
    unreadable = []
    for folder in (*run_folders(store), *(folder for _, folder, _ in in_trash(store))):
        try:
            document = load_json(folder / RUN)
            if not isinstance(document, dict) or newer_format(document):
                raise ValueError("it is no object, or has another format")
        except FileNotFoundError:  # removed since it was listed
            continue
        except (OSError, ValueError, RecursionError):
            unreadable.append(folder.relative_to(store).as_posix())
        else:
            named.update(text.rpartition("/")[2].rpartition("\\")[2] for text in _texts(document))
    return named, unreadable


def _texts(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
