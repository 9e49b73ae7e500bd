"""Output files: a regular file is replaced atomically, a pipe or a device is written to."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sacristan.observers.record.files import replacing, sync_files, sync_folder
from sacristan.observers.record.folders import claimed
from sacristan.runs.errors import StoreError

_NAMED = {"/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")


def check_output(path: Path, *, overwrite: bool, how: str = "overwrite=True") -> None:
    """Reject an output path before doing work that would be lost; `how` names the option that overwrites."""
    if is_stream(path):
        return
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unwritable(path, error) from error
    if stat.S_ISDIR(mode):
        raise StoreError(f"{path} is a folder; give the name of a file")
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path} is a socket or a disk; give the name of a file or a pipe")
    if not overwrite:
        raise StoreError(f"{path} already exists; choose another name, or use {how}")


def is_stream(path: Path) -> bool:
    """Tell whether output is written into a path instead of replacing it, as into a FIFO or a device."""
    if _descriptor(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


@contextlib.contextmanager
def writing(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Open a stream whose content replaces `path`, or a link's target, if the block succeeds."""
    check_output(path, overwrite=overwrite)
    try:
        if not is_stream(path):
            with replacing(Path(os.path.realpath(path))) as stream:
                yield stream
            return
        with tempfile.TemporaryFile() as whole:
            yield whole
            whole.seek(0)
            with os.fdopen(_opened(path), "wb") as stream:
                shutil.copyfileobj(whole, stream, 2**20)
    except OSError as error:
        raise _unwritable(path, error) from error


def _descriptor(path: Path) -> int | None:
    match = _DESCRIPTOR.fullmatch(str(path))
    return int(match[1]) if match else _NAMED.get(str(path))


def _opened(path: Path) -> int:
    number = _descriptor(path)
    if number is None:
        return os.open(path, os.O_WRONLY)
    sys.stdout.flush()
    return os.dup(number)  # opening a file by its name would overwrite it from its start


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} cannot be written ({error.strerror or error})")


@contextlib.contextmanager
def staging_beside(path: Path) -> Iterator[Path]:
    """Create a folder beside an output, elsewhere for a pipe; a second process with this output waits."""
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
    """Move a prepared file or folder to its target, or copy a file into a pipe.

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
    target = Path(os.path.realpath(path))
    prepared.replace(target)
    sync_folder(target.parent)
