"""Files that a run read or made: contents of sources and resources, kept once for all runs of a folder."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sacristan.observers.errors import ArtifactError
from sacristan.observers.record.files import make_folder, open_regular, replacing, sync_folder

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "clone",
    "copy_file",
    "is_as_named",
    "keep",
    "make_shared",
    "md5_in",
    "open_file",
    "path_below",
    "share",
    "write_sparsely",
]

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 2**20
# The request of Linux's ioctl that shares the blocks of a file.
_FICLONE = 0x40049409
# This many zeros become a hole in a copy.
_HOLE = bytes(2**16)


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading; raise ArtifactError for anything else, such as a FIFO, which would block."""
    try:
        return open_regular(path)
    except IsADirectoryError as error:
        raise ArtifactError(f"{path}: it is a folder; log its files, or all of it with log_artifact") from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: it cannot be read ({getattr(error, 'strerror', None) or error})") from error


def keep(path: Path, store: Path, base: str | Path) -> str:
    """Keep the content of a file in a store, once; return its path there, relative to `base`.

    Raises ArtifactError if `path` cannot be read, and OSError if the store cannot be written or read.
    """
    digest = _md5()
    with open_file(path) as stream:
        before = _stamp(stream)
        for chunk in _chunks(stream):
            digest.update(chunk)
        target = store / f"{path.stem}_{digest.hexdigest()}{path.suffix}"
        if is_as_named(target):
            try:
                # `sacristan gc` keeps what was touched lately, whether or not a run names it yet.
                os.utime(target)
            except OSError:
                _log.debug("%s: its time cannot be set; it belongs to another user", target)
        else:
            make_shared(store, store.parent)
            _copy(stream, before, path, target)
            share(target)
    below = os.path.join(base, "")  # noqa: PTH118
    name = str(target)
    return name[len(below) :] if name.startswith(below) else os.path.relpath(target, base)


def md5_in(name: str) -> str | None:
    """Return the MD5 in the name of a kept source or resource, from this program or Sacred."""
    match = re.search(r"_([0-9a-f]{32})(\.[^./]*)?$", name)
    return match[1] if match else None


def is_as_named(path: Path) -> bool:
    """Tell whether a kept content exists, and has the MD5 in its name."""
    try:
        with open_regular(path) as stream:
            return hashlib.file_digest(stream, _md5).hexdigest() == md5_in(path.name)
    except OSError:
        return False


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)


def share(path: Path) -> None:
    """Give all users of the folder around a path the same rights on the path, whatever the umask.

    Otherwise the first user of a shared folder would lock the others out of the contents they share.
    """
    around = path.parent.stat().st_mode
    if path.is_dir():
        mode = stat.S_IMODE(around) if around & 0o022 else 0
    else:
        mode = around & 0o044
    with contextlib.suppress(OSError):  # there are file systems without
        path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)


def make_shared(path: Path, within: Path) -> None:
    """Create a folder that all users of the folder around it share; see `share`.

    `within` is the folder of runs, or another one around it that decides who may write; it is created if necessary.
    """
    if path == within:
        make_folder(path)
    elif not path.is_dir():
        if not path.parent.exists():
            make_shared(path.parent, within)
        path.mkdir(exist_ok=True)
        share(path)
        sync_folder(path.parent)


def path_below(base: Path, path: Path) -> str | None:
    """Return the path of a file relative to a folder; None if it is not below the folder."""
    open_file(path).close()
    path, base = path.resolve(), base.resolve()
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else None


def copy_file(path: Path, target: Path) -> None:
    """Copy a file, so that the copy is whole or missing; holes stay holes.

    Raises ArtifactError if `path` cannot be read or changes meanwhile, and OSError if `target` cannot be written.
    """
    with open_file(path) as source:
        _copy(source, _stamp(source), path, target)


def _stamp(stream: BinaryIO) -> tuple[int, int]:
    status = os.fstat(stream.fileno())
    return status.st_size, status.st_mtime_ns


def _copy(source: BinaryIO, before: tuple[int, int], path: Path, target: Path) -> None:
    """Copy an open file, which must not have changed since `before`."""
    source.seek(0)
    with replacing(target, durable=False) as stream:
        copy_stream(source, stream)
        if _stamp(source) != before:
            raise ArtifactError(f"{path}: it changed while it was read; add it when nobody writes to it any more")


def clone(source: BinaryIO, target: BinaryIO) -> bool:
    """Let a new file share all blocks of an open one, where the file system can (FICLONE); return whether it does.

    A change of either later does not change the other.
    """
    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except (OSError, AttributeError):  # another file system, no file, or not Linux
        return False
    return True


def copy_stream(source: BinaryIO, target: BinaryIO) -> None:
    """Copy the rest of a file, as long as it is at the start; runs of zeros become holes.

    The length of `target` is set at the end, so a hole at the end counts. Blocks are shared where that is possible.
    """
    if clone(source, target):
        return
    for chunk in _chunks(source):
        write_sparsely(target, chunk)
    target.truncate()


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file, as long as it is now, because a growing file may have no end."""
    left = os.fstat(stream.fileno()).st_size - stream.tell()
    while left > 0 and (chunk := stream.read(min(left, _CHUNK_BYTES))):
        yield chunk
        left -= len(chunk)


def write_sparsely(stream: BinaryIO, data: bytes) -> None:
    """Append bytes to a new file, with holes for zeros; call `stream.truncate()` at the end."""
    for start in range(0, len(data), len(_HOLE)):
        part = data[start : start + len(_HOLE)]
        if part == _HOLE:
            stream.seek(len(part), os.SEEK_CUR)
        else:
            stream.write(part)
