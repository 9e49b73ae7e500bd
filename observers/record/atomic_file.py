"""Files that are replaced whole or not at all, and waiting until files and folders are on the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["BINARY", "make_folder", "replacing", "sync_file", "sync_files", "sync_folder"]

# A flag for `os.open`: without it, Windows translates line ends.
BINARY: int = getattr(os, "O_BINARY", 0)
# Errors of file systems that cannot sync, or need not; for folders there are more.
_NOT_POSSIBLE = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
_NOT_FOR_FOLDERS = (*_NOT_POSSIBLE, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR)


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a stream for the new content of a file, which replaces the old content when the block succeeds.

    If anything fails, the old file stays as it was, and no partial file is left beside it.

    Without `durable`, a power cut may undo this; a killed process does not.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    # Umask and folder determine mode and group, as for any new file.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            if durable:
                sync_file(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def write_once(path: Path, content: bytes, *, durable: bool = True) -> bool:
    """Create a file with its whole content; return False, and leave the file, if it exists.

    Of many writers at once, one succeeds, on NFS, too.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
            stream.flush()
            if durable:
                sync_file(stream.fileno())
        os.link(temporary, path)  # whole, and once
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)
    return True


def make_folder(path: Path) -> None:
    """Create a folder and its parents, with names that survive a power cut."""
    if path.is_symlink() and not path.exists():
        target = path.resolve()
        if not target.parent.is_dir():  # as of a disk that is not mounted
            raise FileNotFoundError(errno.ENOENT, f"it is a link to {target}, which does not exist", str(path))
        target.mkdir()
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(path))
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_folder(folder.parent)


def sync_file(descriptor: int) -> None:
    """Wait until an open file is on the disk, if its file system supports that."""
    _sync(descriptor, _NOT_POSSIBLE)


def _sync(descriptor: int, ignored: tuple[int, ...]) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in ignored:
            raise


def sync_files(paths: Iterable[Path]) -> None:
    """Wait until files that were written elsewhere are on the disk, with their names and the names of their folders.

    Files that are gone or cannot be read are skipped.
    """
    folders = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                sync_file(descriptor)
            finally:
                os.close(descriptor)
            folders |= {path.parent, path.parent.parent}
    for folder in folders:
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; otherwise a power cut can remove a file that was synced."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # on Windows, and for folders that may be written but not read
        return
    try:
        _sync(descriptor, _NOT_FOR_FOLDERS)
    finally:
        os.close(descriptor)
