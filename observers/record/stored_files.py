"""Files that a run read or made, kept: contents of sources and resources once for all runs of a folder."""

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

from observers.errors import ArtifactError
from observers.record.atomic_file import replacing
from observers.record.regular_file import open_regular

__all__ = ["copy_file", "is_as_named", "keep", "md5_in", "open_file", "path_below", "write_sparsely"]

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 2**20
# So many zeros at once are left out of a copy, as a hole.
_HOLE = bytes(2**16)


def open_file(path: Path) -> BinaryIO:
    """Open a file to read it; what is none, such as a FIFO, which would be waited for, is refused.

    Raises:
        ArtifactError: If it cannot be read, or is no file.
    """
    try:
        return open_regular(path)
    except IsADirectoryError as error:
        raise ArtifactError(f"{path}: it is a folder; log its files, or all of it with log_artifact") from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: it cannot be read ({getattr(error, 'strerror', None) or error})") from error


def keep(path: Path, store: Path, base: str | Path) -> str:
    """Keep the content of `path` in `store` once, and return where, from the folder `base`.

    Raises:
        ArtifactError: If `path` is no file that can be read.
        OSError: If the store cannot be written, or its content cannot be read.
    """
    digest = _md5()
    with open_file(path) as stream:
        before = _stamp(stream)
        for chunk in _chunks(stream):
            digest.update(chunk)
        target = store / f"{path.stem}_{digest.hexdigest()}{path.suffix}"
        if is_as_named(target):  # what this user may not read is not kept for this run
            try:
                # `runs gc` keeps what was touched lately, whether or not a run names it yet.
                os.utime(target)
            except OSError:
                _log.debug("%s: its time cannot be set; it belongs to another user", target)
        else:
            if not store.is_dir():
                store.mkdir(parents=True, exist_ok=True)
                _share(store)
            _copy(stream, before, path, target)
            _share(target)
    below = os.path.join(base, "")  # noqa: PTH118
    name = str(target)
    return name[len(below) :] if name.startswith(below) else os.path.relpath(target, base)


def md5_in(name: str) -> str | None:
    """Return the MD5 that is in the name under which a source or resource is kept, by us or by Sacred."""
    match = re.search(r"_([0-9a-f]{32})(\.[^./]*)?$", name)
    return match[1] if match else None


def is_as_named(path: Path) -> bool:
    """Tell whether a kept content is there, and has the MD5 that is in its name."""
    try:
        with open_regular(path) as stream:
            return hashlib.file_digest(stream, _md5).hexdigest() == md5_in(path.name)
    except OSError:
        return False


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)


def _share(path: Path) -> None:
    """Give everybody who may use the folder that a path is in the same rights on it, whatever the umask.

    Without that, the first user of a folder that many may write to would keep the others from the contents they share.
    """
    around = path.parent.stat().st_mode
    if path.is_dir():
        mode = stat.S_IMODE(around) if around & 0o022 else 0
    else:
        mode = around & 0o044
    with contextlib.suppress(OSError):  # there are file systems without
        path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)


def path_below(base: Path, path: Path) -> str | None:
    """Return where a file is, from the folder `base`; None if it is not below that.

    Raises:
        ArtifactError: If it is no file that can be read.
    """
    open_file(path).close()
    path, base = path.resolve(), base.resolve()
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else None


def copy_file(path: Path, target: Path) -> None:
    """Copy a file so that `target` is whole or not there; what is a hole in it stays one.

    Raises:
        ArtifactError: If `path` is no file that can be read, or it changes in the meantime.
        OSError: If `target` cannot be written.
    """
    with open_file(path) as source:
        _copy(source, _stamp(source), path, target)


def _stamp(stream: BinaryIO) -> tuple[int, int]:
    found = os.fstat(stream.fileno())
    return found.st_size, found.st_mtime_ns


def _copy(source: BinaryIO, before: tuple[int, int], path: Path, target: Path) -> None:
    """Copy all of an open file, which is to be as it was `before`."""
    source.seek(0)
    with replacing(target, durable=False) as stream:
        copy_stream(source, stream)
        if _stamp(source) != before:
            raise ArtifactError(f"{path}: it changed while it was read; add it when nobody writes to it any more")


def copy_stream(source: BinaryIO, target: BinaryIO) -> None:
    """Copy all that is left of a file."""
    for chunk in _chunks(source):
        write_sparsely(target, chunk)
    target.truncate()


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield what is left of a file now: one that grows may have no end."""
    left = os.fstat(stream.fileno()).st_size - stream.tell()
    while left > 0 and (chunk := stream.read(min(left, _CHUNK_BYTES))):
        yield chunk
        left -= len(chunk)


def write_sparsely(stream: BinaryIO, data: bytes) -> None:
    """Append bytes to a new file, with holes for zeros; `stream.truncate()` gives it its length in the end."""
    for start in range(0, len(data), len(_HOLE)):
        part = data[start : start + len(_HOLE)]
        if part == _HOLE:
            stream.seek(len(part), os.SEEK_CUR)
        else:
            stream.write(part)
