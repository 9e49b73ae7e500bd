"""Copies of files: whole or not there, resumed where an earlier attempt stopped, with their progress on a terminal.

A copy of a large file that is cut short, as by a killed process or a full disk, leaves its part. The next attempt
compares the part with the source and writes from the first byte that differs, so a source that has changed, or a part
that a power cut has damaged, gives a right copy as well. Blocks are shared where the file system can (`reflink`).

Contents of sources and resources are kept once for all runs of a folder, under their MD5 (`keep`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

from sacristan.observers.errors import ArtifactError
from sacristan.observers.record.files import make_folder, open_regular, replacing, sync_folder

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

# What the name of a part ends in.
PART = ".part.tmp"
# Copies of files of at least this size leave their part.
RESUMED_BYTES = 16 * 2**20
_CHUNK_BYTES = 2**20
# The request of Linux's ioctl that shares the blocks of a file.
_FICLONE = 0x40049409
# This many zeros become a hole in a copy.
_HOLE = bytes(2**16)
# A part on a full disk is cut by this much, so that runs can write their records.
_ROOM_BYTES = 8 * 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Seconds before a copy shows its progress, and between two changes of the line.
_PATIENCE_S, _REDRAWN_S = 1.0, 0.2


class ChangedWhileReadError(ArtifactError):
    """A file changed while it was copied, so that its part is of no use."""


# ---------------------------------------------------------------------- progress

_terminal: TextIO | None = None


def draw_on(terminal: TextIO | None) -> None:
    """Draw the progress of copies on a terminal, which a run that captures its output has kept."""
    global _terminal
    _terminal = terminal


class CopyProgress:
    """A line on the terminal, if there is one, on a copy that takes longer than a second, until the end of the block.

    copying net.pt: 45 % of 2.7 GB, 310 MB/s, 5 s left
    """

    def __init__(self, name: str, num_bytes: int) -> None:
        self._name, self._total, self._done = name, num_bytes, 0
        self._start = time.monotonic()
        self._due = self._start + _PATIENCE_S
        self._stream = _terminal
        if self._stream is None and getattr(sys.stderr, "isatty", bool)():
            self._stream = sys.stderr
        self._is_shown = False

    def __enter__(self) -> CopyProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_shown:
            self._draw("")

    def advance(self, num_bytes: int) -> None:
        """Note that so many bytes more are done."""
        self._done += num_bytes
        if self._stream is None or (now := time.monotonic()) < self._due:
            return
        self._due = now + _REDRAWN_S
        rate = self._done / (now - self._start)
        share, left = self._done / max(self._total, 1), max(0, self._total - self._done) / max(rate, 1)
        name = "".join(letter if letter.isprintable() else "?" for letter in self._name)
        self._is_shown = True
        self._draw(f"copying {name}: {share:.0%} of {_size(self._total)}, {_size(rate)}/s, {_duration(left)} left")

    def _draw(self, line: str) -> None:
        assert self._stream is not None
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            self._stream.write(f"\r{line}\x1b[K")
            self._stream.flush()


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


# ---------------------------------------------------------------------- copying


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading; raise ArtifactError for anything else, such as a FIFO, which would block."""
    try:
        return open_regular(path)
    except IsADirectoryError as error:
        raise ArtifactError(f"{path}: it is a folder; log its files, or all of it with log_artifact") from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: it cannot be read ({getattr(error, 'strerror', None) or error})") from error


def stamp(stream: BinaryIO) -> tuple[int, int]:
    """Return a value that changes with an open file."""
    status = os.fstat(stream.fileno())
    return status.st_size, status.st_mtime_ns


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file, as long as it is now, because a growing file may have no end."""
    left = os.fstat(stream.fileno()).st_size - stream.tell()
    while left > 0 and (chunk := stream.read(min(left, _CHUNK_BYTES))):
        yield chunk
        left -= len(chunk)


def copy_file(path: Path, target: Path) -> None:
    """Copy a file, so that the copy is whole or missing; a large one is resumed where an earlier attempt stopped.

    Only one process may write into the folder of `target`. Raises ArtifactError if `path` changes or cannot be read.
    """
    with open_file(path) as source:
        copy_open_file(source, stamp(source), path, target, is_resumed=True)


def copy_open_file(
    source: BinaryIO, before: tuple[int, int], path: Path, target: Path, *, is_resumed: bool = False
) -> None:
    """Copy an open file, which must not have changed since its `stamp` was `before`; see `copy_file`."""
    source.seek(0)
    num_bytes = before[0]
    with (
        _resuming(target) if is_resumed and num_bytes >= RESUMED_BYTES else replacing(target, durable=False) as stream,
        CopyProgress(path.name, num_bytes) as progress,
    ):
        copy_stream(source, stream, num_bytes, progress)
        if stamp(source) != before:
            raise ChangedWhileReadError(
                f"{path}: it changed while it was read; add it when nobody writes to it any more"
            )


# Parts that a thread of this process writes.
_in_use: set[Path] = set()
_choosing = threading.Lock()


@contextlib.contextmanager
def _resuming(target: Path) -> Iterator[BinaryIO]:
    """Open the part of a file, which may be there; it becomes the file if the block succeeds, and stays otherwise."""
    part = target.with_name(f".{target.name}{PART}")
    with _choosing:
        is_free = part not in _in_use
        _in_use.add(part)
    if not is_free:  # another thread adds a file of that name
        with replacing(target, durable=False) as stream:
            yield stream
        return
    try:
        with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as stream:
            yield stream
        part.replace(target)
    except ChangedWhileReadError:
        part.unlink(missing_ok=True)
        raise
    finally:
        _in_use.remove(part)


def copy_stream(
    source: BinaryIO,
    target: BinaryIO,
    num_bytes: int,
    progress: CopyProgress | None = None,
    digest: hashlib._Hash | None = None,
) -> int:
    """Copy a stream over a part of it, with holes for zeros, up to `num_bytes`; return the stream's length."""
    is_clone = clone(source, target)
    if is_clone and digest is None:
        return os.fstat(target.fileno()).st_size
    is_same, num_read = not is_clone, 0
    try:
        while num_read <= num_bytes and (chunk := read(target if is_clone else source)):
            if digest is not None:
                digest.update(chunk)
            if is_same and target.read(len(chunk)) != chunk:
                is_same = False
                target.seek(num_read)
                target.truncate()
            if not is_same and not is_clone:
                _write_sparsely(target, chunk)
            num_read += len(chunk)
            if progress is not None:
                progress.advance(len(chunk))
        target.truncate(num_read)
        target.flush()
    except OSError as error:
        if error.errno in _FULL:
            os.ftruncate(target.fileno(), max(0, os.fstat(target.fileno()).st_size - _ROOM_BYTES))
        raise
    return num_read


def read(stream: BinaryIO, num_bytes: int = _CHUNK_BYTES) -> bytes:
    """Return the next bytes of a stream; raise ArtifactError if it cannot be read."""
    try:
        return stream.read(num_bytes)
    except OSError as error:
        name = getattr(stream, "name", "the content")
        raise ArtifactError(f"{name}: it cannot be read ({error.strerror or error}))") from error


def clone(source: BinaryIO, target: BinaryIO) -> bool:
    """Let a file share all blocks of another (FICLONE), where the file system can; each may still change alone."""
    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        os.ftruncate(target.fileno(), os.fstat(source.fileno()).st_size)
    except (OSError, AttributeError):  # another file system, no file, or not Linux
        return False
    return True


def _write_sparsely(stream: BinaryIO, data: bytes) -> None:
    """Write bytes at the end of a file, with holes for zeros; call `stream.truncate()` at the end."""
    for start in range(0, len(data), len(_HOLE)):
        part = data[start : start + len(_HOLE)]
        if part == _HOLE:
            stream.seek(len(part), os.SEEK_CUR)
        else:
            stream.write(part)


def keep(path: Path, store: Path, base: str | Path) -> str:
    """Keep the content of a file in a store, once; return its path there, relative to `base`."""
    digest = _md5()
    with open_file(path) as stream:
        before = stamp(stream)
        for chunk in chunks(stream):
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
            copy_open_file(stream, before, path, target)
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
    """Give all users of the folder around a path the same rights, so that the first does not lock others out."""
    around = path.parent.stat().st_mode
    if path.is_dir():
        mode = stat.S_IMODE(around) if around & 0o022 else 0
    else:
        mode = around & 0o044
    with contextlib.suppress(OSError):  # there are file systems without
        path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)


def make_shared(path: Path, within: Path) -> None:
    """Create a folder with the rights of the folder of runs, or another one around it; see `share`."""
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
