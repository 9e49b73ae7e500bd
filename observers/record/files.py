"""Files of a record: reading regular files only, replacing files whole, syncing, and paths that stay valid.

Other programs write here, too. Reading a FIFO would block forever, and reading a device such as `/dev/zero` would never
end. Both raise an OSError, so callers report them like any other file that cannot be read.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

# Larger files would only fill the memory.
MAX_BYTES = 2**30
# The greatest number of a standard stream.
_LAST_STANDARD = 2
# With these, opening a FIFO without a writer does not block.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading; raise OSError for anything else."""
    handle = _open(path)
    check_regular(handle, path)
    return os.fdopen(handle, "rb")


def _open(path: str | Path) -> int:
    try:
        return os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a missing device
            raise _no_file(path) from error
        raise


def check_regular(handle: int, path: str | Path) -> os.stat_result:
    """Return the status of an open file; if it is not a regular one, close it and raise OSError."""
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode):
        return status
    os.close(handle)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _no_file(path)


def read_regular(path: str | Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file of up to `max_bytes`; raise OSError for anything else."""
    handle = _open(path)
    size = check_regular(handle, path).st_size
    # Without a stream, which would double the time: a store has thousands of small files.
    try:
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, expected at most {max_bytes:,}", str(path))
        parts = []
        while part := os.read(handle, max(size, 1)):
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(handle)


def _no_file(path: str | Path) -> OSError:
    return OSError(errno.EINVAL, "it is no regular file", str(path))


class Descriptor:
    """A descriptor above 2, owned but closable by others, as with `os.closerange`: ask `is_open` before each use."""

    def __init__(self, number: int) -> None:
        self.number = number
        if number <= _LAST_STANDARD and fcntl is not None:
            self.number = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _LAST_STANDARD + 1)
            os.close(number)
        self.file = _file_of(self.number)

    @property
    def is_open(self) -> bool:
        """True unless other code has closed it."""
        return _file_of(self.number) == self.file

    def is_at(self, path: Path) -> bool:
        """Tell whether a path leads to the file as it was opened; raise OSError if the path leads nowhere."""
        status = path.stat()
        return (status.st_dev, status.st_ino) == self.file

    def close(self) -> None:
        if self.is_open:
            os.close(self.number)


def _file_of(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# ---------------------------------------------------------------------- writing

# A flag for `os.open`: without it, Windows translates line ends.
BINARY: int = getattr(os, "O_BINARY", 0)
# Errors of file systems that cannot sync, or need not; for folders there are more.
_NOT_POSSIBLE = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
_NOT_FOR_FOLDERS = (*_NOT_POSSIBLE, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR)


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True, check: Callable[[Path], Any] | None = None) -> Iterator[BinaryIO]:
    """Open a stream for the new content of a file, which replaces the old content only when the block succeeds.

    `check` gets the new file before that, and raises to reject it. Without `durable`, a power cut may undo this.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    # Umask and folder determine mode and group, as for any new file.
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
    try:
        with os.fdopen(handle, "w+b") as stream:
            yield stream
            stream.flush()
            if durable:
                sync_file(stream.fileno())
        if check is not None:
            check(temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def write_once(path: Path, content: bytes, *, durable: bool = True) -> bool:
    """Create a file with its whole content; return False if it exists. Of many writers one succeeds, on NFS, too."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
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
    """Wait until files written elsewhere, and their folders' names, are on the disk; skip those that are gone."""
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


# ---------------------------------------------------------------------- paths that stay valid

_MAX_PART_BYTES = 255


def relative_path(name: str) -> PurePosixPath | None:
    """Return a name as a path that stays below a folder on every system and is valid there; otherwise None."""
    parts = name.split("/")
    if re.search(r"[\x00-\x1f\x7f\\]", name) or ":" in parts[0] or {"", ".", ".."} & set(parts):
        return None
    try:
        is_long = any(len(part.encode()) > _MAX_PART_BYTES for part in parts)
    except UnicodeEncodeError:
        return None
    return None if is_long else PurePosixPath(name)


def file_name(path: str | Path) -> str:
    """Return the name of a file; what `relative_path` rejects, such as bytes that are no UTF-8, becomes %XX."""
    odd = r"[\udc80-\udcff\x00-\x1f\x7f\\]"
    return re.sub(odd, lambda match: "".join(f"%{byte:02X}" for byte in os.fsencode(match[0])), Path(path).name)


def lasting_path(path: str | Path) -> Path:
    """Return an absolute path, which stays valid when the working folder is changed or deleted."""
    path = Path(path).absolute()
    # The system looks up each folder before `..`, so a deleted one would break the path.
    return path.resolve() if ".." in path.parts else path


def shown_path(path: Path) -> str:
    """Return a path as messages show it: relative to the working folder, if it is below that."""
    with contextlib.suppress(ValueError, FileNotFoundError):  # it is elsewhere, or the working folder was deleted
        path = path.relative_to(Path.cwd())
    return str(path)
