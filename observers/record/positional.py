"""Reading and writing at a place of an open file, on systems that do not have it, too.

Windows has no `pread` and `pwrite`, and opens files as text unless told otherwise.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

__all__ = ["BINARY", "pread", "pwrite"]

# What `os.open` needs for bytes to stay what they are.
BINARY: int = getattr(os, "O_BINARY", 0)

# Where the position of a file has to be moved, one thread moves it at a time.
_moving = threading.Lock()


def _pread(descriptor: int, count: int, start: int) -> bytes:
    """Do what `os.pread` does."""
    with _moving:
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, start, os.SEEK_SET)
            return os.read(descriptor, count)
        finally:
            os.lseek(descriptor, before, os.SEEK_SET)


def _pwrite(descriptor: int, data: bytes | memoryview, start: int) -> int:
    """Do what `os.pwrite` does."""
    try:
        with _moving:
            before = os.lseek(descriptor, 0, os.SEEK_CUR)
            try:
                os.lseek(descriptor, start, os.SEEK_SET)
                return os.write(descriptor, data)
            finally:
                os.lseek(descriptor, before, os.SEEK_SET)
    finally:
        # The traceback of an error would hold the data, whose buffer the caller may want to cut.
        del data


# The system's own, where there are any: calls of them have no frame that a traceback could hold.
pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _pread)
pwrite: Callable[[int, bytes | memoryview, int], int] = getattr(os, "pwrite", _pwrite)
