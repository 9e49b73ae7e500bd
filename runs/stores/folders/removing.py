"""Removing runs from a folder: a run's folder is moved to where nobody looks for runs, and then deleted."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from observers.record.json_text import parse_json
from observers.record.locking import claimed, locked
from observers.record.numbered_folder import as_number
from observers.record.regular_file import read_regular
from observers.record.schema import RUN
from runs.errors import StoreAwayError, StoreError
from runs.query.index.folders import SPOOLED, run_folders
from runs.stores.leftovers import OUTGOING, UNFINISHED, delete, is_older, sweep_folders, sweep_unfinished
from runs.stores.removing import Removed

__all__ = ["TRASH", "discard_folder", "in_trash", "reclaim", "remove_folder", "restore_folder"]

# A folder for each run that was discarded, in which it lies as it did in the store.
TRASH = ".trash"
_SHARED = ("_sources", "_resources")
_CONTENT = re.compile(r".*_[0-9a-f]{32}(\.[^/]*)?", re.DOTALL)
_ASIDE = ".removing-"


def remove_folder(store: Path, folder: Path) -> None:
    """Remove the folder of a run at once; one in a spool together with the contents beside it.

    Raises:
        StoreError: If it cannot be moved away; then it stays as it was.
    """
    outgoing = store / OUTGOING
    # A long name of the run and ours together may be too long.
    target = outgoing / f"{folder.name[:64]}-{secrets.token_hex(4)}"
    _move_away(store, folder, lambda _: target)
    delete(target)
    with contextlib.suppress(OSError):
        outgoing.rmdir()


def discard_folder(store: Path, folder: Path) -> None:
    """Move the folder of a run into the trash, from which `restore_folder` brings it back.

    Raises:
        StoreError: If it cannot be moved; then it stays as it was.
    """
    place = store / TRASH / secrets.token_hex(8)
    _move_away(store, folder, lambda moved: place / moved.relative_to(store))


def _move_away(store: Path, folder: Path, target_of: Callable[[Path], Path]) -> None:
    try:
        with contextlib.ExitStack() as stack:
            if folder.name == SPOOLED and folder.parent != store:
                # `runs sync` holds it while it delivers it.
                stack.enter_context(locked(folder))
                folder = folder.parent
            target = target_of(folder)
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


def in_trash(store: Path) -> list[tuple[Path, Path, int]]:
    """Return the runs in the trash, the one discarded last first: the place of each, its folder in there, and when."""
    found = []
    for place in (store / TRASH).glob("*"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, StoreAwayError):  # another process took it
            found += [(place, folder, place.stat().st_mtime_ns) for folder in run_folders(place)]
    return sorted(found, key=lambda one: (one[2], one[1]), reverse=True)


def restore_folder(store: Path, place: Path, folder: Path) -> str:
    """Move a run back out of the trash, and return its id: the one that it had, or else the next number.

    Raises:
        StoreError: If it cannot be moved; then it stays as it was.
    """
    id = folder.relative_to(place)
    moved = folder.parent if folder.name == SPOOLED and folder.parent != place else folder
    target = store / moved.relative_to(place)
    try:
        with claimed(store):
            if target.exists():
                if moved is not folder:
                    raise StoreError(f"{target} already exists; move it away, or sync it first")
                taken = filter(None, (as_number(path.name) for path in store.iterdir()))
                target = store / str(1 + max(taken, default=0))
                id = Path(target.name)
            target.parent.mkdir(exist_ok=True)
            moved.rename(target)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not moved.exists():
            had = folder.relative_to(place).as_posix()
            raise StoreError(f"run {had} is no longer in the trash of {store}; another process took it") from error
        raise StoreError(f"{folder} cannot be brought back ({error.strerror}); check its permissions") from error
    shutil.rmtree(place, ignore_errors=True)
    return id.as_posix()


def _empty_trash(store: Path, oldest: float) -> list[str]:
    """Delete what is in the trash; return the ids that the runs had which are gone."""
    gone = []
    for place, folder, _ in in_trash(store):
        # It goes as a whole: nobody can bring back half of it.
        target = store / OUTGOING / place.name
        try:
            target.parent.mkdir(exist_ok=True)
            place.rename(target)
        except OSError:
            continue
        delete(target)
        if target.exists():  # for the next time
            with contextlib.suppress(OSError):
                target.rename(place)
        else:
            gone.append(folder.relative_to(place).as_posix())
    with contextlib.suppress(OSError):
        for path in (store / TRASH).iterdir():
            if is_older(path, oldest):  # else a run may be about to come into it
                delete(path)
        (store / TRASH).rmdir()
    return gone


def reclaim(store: Path, removed: Removed, grace_s: float, *, empties_trash: bool = False) -> None:
    """Delete what was left behind, and contents that no run names and nothing touched for `grace_s` seconds.

    Args:
        store: The folder of runs.
        removed: Is told what is gone.
        grace_s: As above.
        empties_trash: Whether runs in the trash go, too.

    Raises:
        StoreError: If the folder cannot be read.
    """
    oldest = time.time() - grace_s
    if empties_trash:
        removed.runs += _empty_trash(store, oldest)
    sweep_folders(store, oldest)
    found = [path for name in _SHARED for path in _contents(store / name, oldest)]
    named, removed.unreadable = named_contents(store)
    if empties_trash:
        sweep_unfinished(store, removed, oldest, named)
    unused = [path for path in found if path.name not in named]
    removed.num_young += sum(not is_older(path, oldest) for path in unused)
    old = [path for path in unused if is_older(path, oldest)]
    if removed.unreadable or not old:
        return
    aside = [(path, path.with_name(_ASIDE + path.name)) for path in old]
    for path, away in aside:
        with contextlib.suppress(OSError):
            path.rename(away)
    # A run that began since then either finds a content gone, and copies it anew, or has touched or named it before.
    named, unreadable = named_contents(store)
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
    """Yield the contents of sources or resources; what was set aside and not deleted is put back first."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names are wanted
    except OSError:
        return
    for name in names:
        if name.startswith(_ASIDE):
            _put_back(folder / name, folder / name.removeprefix(_ASIDE))
        elif UNFINISHED.fullmatch(name) and is_older(folder / name, oldest):
            delete(folder / name)
    for name in sorted({name.removeprefix(_ASIDE) for name in names}):
        path = folder / name
        if _CONTENT.fullmatch(name) and path.is_file() and not path.is_symlink():
            yield path


def _put_back(away: Path, path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.exists():
            away.unlink()  # a run has copied it anew
        else:
            away.rename(path)


def named_contents(store: Path) -> tuple[set[str], list[str]]:
    """Return the last parts of all names that runs' records hold, and the runs whose record cannot be read."""
    named: set[str] = set()
    unreadable = []
    for folder in (*run_folders(store), *(folder for _, folder, _ in in_trash(store))):
        try:
            document = parse_json(read_regular(folder / RUN))
            if not isinstance(document, dict):
                raise ValueError("it is no object")
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
