"""Reading the files of a record, where other programs write, too: only regular files, up to a maximum size.

Reading a FIFO would block forever, and reading a device such as `/dev/zero` would never end. Both raise an OSError, so
callers report them like any other file that cannot be read.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["MAX_BYTES", "Descriptor", "check_regular", "open_regular", "read_regular"]

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


# ---------------------------------------------------------------------- descriptors that stay open


class Descriptor:
    """A descriptor, owned from now on, that is open for long, while other code may close it, as `os.closerange` does.

    Its number may then be that of another file, so ask `is_open` before each use. It is above 2: whoever closes or
    replaces a standard stream does not meet it.
    """

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
        """Tell whether a path leads to the file, as it was when the descriptor was opened.

        Raises OSError if the path leads nowhere, or a server does not answer.
        """
        status = path.stat()
        return (status.st_dev, status.st_ino) == self.file

    def close(self) -> None:
        """Close it, unless other code has."""
        if self.is_open:
            os.close(self.number)


def _file_of(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino
