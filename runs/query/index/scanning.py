"""The runs in a folder, each with a stamp that changes when the run does; JSON files that may be missing or damaged."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from sacristan.observers.record.folders import as_number
from sacristan.observers.record.schema import RUN
from sacristan.runs.errors import StoreAwayError, StoreError

SPOOL, SPOOLED = "_spool", "run"
_NO_RUNS = frozenset((SPOOL, "_sources", "_resources", "_mongod", ".removing", ".taking"))
# File times are as coarse as two seconds on some file systems, and clocks of servers differ: a file read sooner after
# its change may change again without a trace.
COARSE_NS = 2 * 10**9
# The stamp of a run that no look equals: further changes might not show in its own.
UNSETTLED = "just now"


def run_folders(store: Path) -> Iterator[Path]:
    """Yield the folder of every run in a store by name, 9 before 10; those of its spool come last."""
    require_folder(store)
    yield from sorted(filter(has_record, store.iterdir()), key=lambda p: (len(p.name), p.name))
    # A spool has a folder for each run, which is a store of its own.
    yield from sorted(path.parent for where in (store, store / SPOOL) for path in where.glob(f"*/{SPOOLED}/{RUN}"))


def has_record(folder: Path) -> bool:
    """Tell whether a folder holds a run; an unreadable folder counts as one."""
    try:
        (folder / RUN).lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def require_folder(store: Path) -> None:
    """Check that a folder of runs exists (else StoreAwayError) and can be listed and entered (else StoreError)."""
    try:
        if not store.is_dir():
            raise StoreAwayError(
                f"there is no folder {store}; give the folder or URL that runs are recorded in (--store), or start a "
                "run, which creates my_runs"
            )
        with os.scandir(store):
            (store / RUN).exists()
    except PermissionError as error:
        raise StoreError(f"{store} cannot be read ({error.strerror}); check its permissions") from error


def scan(store: Path, known: Mapping[str, str] = MappingProxyType({})) -> Iterator[tuple[str, str]]:
    """Yield the name of every run in a folder (its path below `store`, with slashes) and its stamp, in no order.

    Stamps in `known` are taken for true. A numbered folder counts even without a run.json: its run is being made, or
    was damaged.
    """
    # Plain names: creating pathlib's objects would take as long as the stats.
    try:
        names = os.listdir(store)  # noqa: PTH208
    except OSError as error:
        raise StoreError(f"{store} cannot be listed ({error.strerror}); check its permissions and the disk") from error
    folder = str(store)
    for name in names:
        if name in _NO_RUNS:
            continue
        stamp = known.get(name) or _stamp_of(f"{folder}/{name}")
        if stamp is not None:
            yield name, stamp
        elif (stamp := _stamp_of(f"{folder}/{name}/{SPOOLED}")) is not None:
            yield f"{name}/{SPOOLED}", stamp
    if SPOOL in names:
        yield from _scan_spool(folder)


def listing_of(store: Path) -> str:
    """Return a text that changes when a run is added to a folder or removed from it; empty if that might not show."""
    parts = []
    for folder in (store, store / SPOOL):
        try:
            status = folder.stat()
        except OSError:
            continue
        parts.append(f"{status.st_mtime_ns} {status.st_ctime_ns}")
    stamp = " ".join(parts)
    return "" if not parts or was_touched_just_now(stamp) else stamp


def _scan_spool(folder: str) -> Iterator[tuple[str, str]]:
    try:
        names = os.listdir(f"{folder}/{SPOOL}")  # noqa: PTH208
    except OSError:
        return
    for name in names:
        if (stamp := _stamp_of(f"{folder}/{SPOOL}/{name}/{SPOOLED}")) is not None:
            yield f"{SPOOL}/{name}/{SPOOLED}", stamp


def look(store: Path, name: str) -> str | None:
    """Return the present stamp of a run, as scanned if nothing has changed since; None if there is no such run."""
    outer, slash, _ = name.rpartition("/")
    if slash and not outer.startswith(f"{SPOOL}/") and _stamp_of(f"{store}/{outer}") is not None:
        return None  # the outer folder is a run itself
    return _stamp_of(f"{store}/{name}")


def _stamp_of(folder: str) -> str | None:
    # os.stat of a text: pathlib would double the time of a scan.
    try:
        outer = os.stat(folder)  # noqa: PTH116
        if not stat.S_ISDIR(outer.st_mode):
            return None
        try:
            inner = os.stat(f"{folder}/{RUN}")  # noqa: PTH116
        except FileNotFoundError:
            is_numbered = as_number(folder.rpartition("/")[2]) is not None
            return f"{outer.st_mtime_ns} {outer.st_ctime_ns}" if is_numbered else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"error {error.errno}"
    return (
        f"{outer.st_mtime_ns} {outer.st_ctime_ns}"
        f" {inner.st_mtime_ns} {inner.st_ctime_ns} {inner.st_size} {inner.st_ino}"
    )


def was_touched_just_now(stamp: str) -> bool:
    """Tell whether a run changed so recently that its stamp might miss another change."""
    if stamp.startswith("error"):
        return True
    return max(map(int, stamp.split()[:4])) > time.time_ns() - COARSE_NS
