"""Reading the files of a record, which lie where others write, too: regular files only, and of a bounded size.

A FIFO would be waited for without end, and a device such as `/dev/zero` read without end. What is no regular file is an
OSError like any other, so that whoever tells of a file that cannot be read tells of these, too.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

__all__ = ["MAX_BYTES", "check_regular", "open_regular", "read_regular"]

# What is read at once and is larger would only fill the memory.
MAX_BYTES = 2**30
# A FIFO without a writer opens at once.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a file to read it.

    Raises:
        OSError: If it cannot be read, or is no regular file.
    """
    handle = _open(path)
    check_regular(handle, path)
    return os.fdopen(handle, "rb")


def _open(path: str | Path) -> int:
    try:
        return os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a device that is not there
            raise _no_file(path) from error
        raise


def check_regular(handle: int, path: str | Path) -> os.stat_result:
    """Return what stands about an open file; close it, and raise, if it is no regular one.

    Raises:
        OSError: If it is none.
    """
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode):
        return status
    os.close(handle)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _no_file(path)


def read_regular(path: str | Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return what is in a file.

    Raises:
        OSError: If it cannot be read, is no regular file, or is longer than `max_bytes`.
    """
    handle = _open(path)
    size = check_regular(handle, path).st_size
    # Without a stream, which would cost as much as the rest: a store has thousands of small files.
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
