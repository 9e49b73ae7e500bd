"""Reading and writing at a place of an open file, on systems that do not have it, too.

Windows has no `pread` and `pwrite`, and opens files as text unless told otherwise.
"""

from __future__ import annotations

import os
import threading

__all__ = ["BINARY", "pread", "pwrite"]

# What `os.open` needs for bytes to stay what they are.
BINARY: int = getattr(os, "O_BINARY", 0)

# Where the position of a file has to be moved, one thread moves it at a time.
_moving = threading.Lock()


def pread(descriptor: int, count: int, start: int) -> bytes:
    """Return up to `count` bytes from the place `start`; see `os.pread`.

    Raises:
        OSError: If the file cannot be read.
    """
    if hasattr(os, "pread"):
        return os.pread(descriptor, count, start)
    with _moving:
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, start, os.SEEK_SET)
            return os.read(descriptor, count)
        finally:
            os.lseek(descriptor, before, os.SEEK_SET)


def pwrite(descriptor: int, data: bytes | memoryview, start: int) -> int:
    """Write at the place `start`, and return how many bytes were; see `os.pwrite`.

    Raises:
        OSError: If the file cannot be written.
    """
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, start)
    with _moving:
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, start, os.SEEK_SET)
            return os.write(descriptor, data)
        finally:
            os.lseek(descriptor, before, os.SEEK_SET)
