"""Files that are replaced as a whole or not at all, and files that only one of many writers creates."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from observers.record.positional import BINARY

__all__ = ["make_folder", "replacing", "sync_file", "sync_files", "sync_folder", "write_once"]

# What file systems say that cannot do this, or need not; of a folder, some say more.
_NOT_POSSIBLE = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
_NOT_FOR_FOLDERS = (*_NOT_POSSIBLE, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR)


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Give a stream to write the new content of `path` to; on success it takes the place of the old content.

    If anything fails, the old file stays as it was and nothing half-written is left beside it.

    Args:
        path: The file.
        durable: Whether to wait until it is on the disk. A process that is killed never needs that, a power cut does.

    Raises:
        OSError: If the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    # Mode and group are up to the umask and the folder, as of any new file.
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
    """Create a file with its whole content, unless it exists; of many writers at once, one succeeds, on NFS, too.

    Args:
        path: The file.
        content: Its content.
        durable: Whether to wait until it is on the disk; see `replacing`.

    Returns:
        False if the file exists already; then it is left as it is.

    Raises:
        OSError: If the file cannot be written.
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
    """Make a folder, and those that it is in, whose names no power cut takes away again; one that is there is left.

    Raises:
        OSError: If it cannot be made.
    """
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_folder(folder.parent)


def sync_file(descriptor: int) -> None:
    """Wait until what was written to an open file is on the disk, where the file system has such a thing.

    Raises:
        OSError: If the disk fails.
    """
    _sync(descriptor, _NOT_POSSIBLE)


def _sync(descriptor: int, passed_over: tuple[int, ...]) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in passed_over:
            raise


def sync_files(paths: Iterable[Path]) -> None:
    """Wait until files that others have written, and the names of them and of their folders, are on the disk.

    Raises:
        OSError: If the disk fails. A file that is gone is passed over.
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
    """Wait until the names in a folder are on the disk: without that, a power cut can take a file that is there.

    Raises:
        OSError: If the disk fails.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # on Windows, and where a folder may be written but not read
        return
    try:
        _sync(descriptor, _NOT_FOR_FOLDERS)
    finally:
        os.close(descriptor)
