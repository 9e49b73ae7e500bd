"""Append-only files: whole records, a torn tail repaired, what a full disk refuses kept up to a bound."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from observers.record.atomic_file import replacing, sync_file, sync_folder
from observers.record.positional import BINARY, pread, pwrite
from observers.record.regular_file import check_regular

__all__ = ["MAX_PENDING_BYTES", "AppendFile"]

_log = logging.getLogger(__name__)
MAX_PENDING_BYTES = 64 * 2**20
# A multiple of a point's.
_COPIED_BYTES = 24 * 2**18


class AppendFile:
    """An append-only file of whole records, which repairs a torn tail when it is opened.

    Args:
        path: The file; made when the first record is written.
        record_bytes: Length of a record; None for lines; 0 for a stream without records.
        note: Called with what has been written, and where it begins.
    """

    def __init__(
        self,
        path: Path,
        record_bytes: int | None = None,
        note: Callable[[int, memoryview], None] | None = None,
    ) -> None:
        self.path = path
        self.record_bytes = record_bytes
        self.num_lost_bytes = 0
        self._pending = bytearray()
        self._fd: int | None = None
        self._note = note
        self._size = 0
        self._is_named_on_disk = False

    @property
    def num_pending_bytes(self) -> int:
        """Bytes that failed to be written, and are tried again."""
        return len(self._pending)

    @property
    def num_pending_lines(self) -> int:
        """The same in lines."""
        return self._pending.count(b"\n")

    @property
    def num_records(self) -> int:
        """Records in the file, once it was opened, and of those that failed to be written; for records of a length."""
        return (self._size + len(self._pending)) // (self.record_bytes or 1)

    @property
    def num_written(self) -> int:
        """Records in the file, once it was opened."""
        return self._size // (self.record_bytes or 1)

    def create(self) -> None:
        """Make the file, if it is not there."""
        if self._fd is None:
            self._open()

    def append(self, data: bytes) -> bool:
        """Write `data` behind what is there, and what failed before ahead of it; return whether all is written.

        Raises:
            OSError: If it is not; what does not get into the file as a whole record is tried again.
        """
        self._pending += data
        if not self._pending:
            return True
        written = 0
        try:
            fd = self._open() if self._fd is None else self._fd
            with memoryview(self._pending) as view:
                while written < len(view):
                    written += pwrite(fd, view[written:], self._size + written)
        except OSError:
            self._drop_written(self._whole_part(written))
            self._cut_tail()
            self._give_up_oldest()
            raise
        self._drop_written(written)
        return True

    def hold(self, data: bytes) -> None:
        """Keep `data` for the next `append`."""
        self._pending += data
        self._give_up_oldest()

    def _whole_part(self, written: int) -> int:
        """Return how many of the bytes that were written, of those that wait, are whole records."""
        if self.record_bytes is None:
            return self._pending.rfind(b"\n", 0, written) + 1
        return written - written % (self.record_bytes or 1)

    def _drop_written(self, written: int) -> None:
        if self._note is not None and written:
            with memoryview(self._pending) as view:
                self._note(self._size, view[:written])
        self._size += written
        del self._pending[:written]

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | BINARY, 0o666)
        check_regular(fd, self.path)
        self._fd = fd
        size = os.fstat(fd).st_size
        self._size = self._whole(fd, size)
        if self._size != size:
            os.ftruncate(fd, self._size)
        return fd

    def _whole(self, fd: int, size: int) -> int:
        """Return the size of the file without its torn tail."""
        if self.record_bytes == 0:
            return size
        if self.record_bytes is not None:
            return size - size % self.record_bytes
        end = size
        while end > 0:
            start = max(0, end - 65536)
            newline = pread(fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
        return 0

    def _cut_tail(self) -> None:
        """Take back what a failed write left, so that readers meet whole records only."""
        if self._fd is not None:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError:
                _log.debug("%s: the tail of a failed write stays until the next one", self.path)

    def _give_up_oldest(self) -> None:
        excess = len(self._pending) - MAX_PENDING_BYTES
        if excess <= 0:
            return
        if self.record_bytes:
            excess += -excess % self.record_bytes
        elif self.record_bytes is None:
            excess = self._pending.find(b"\n", excess) + 1 or len(self._pending)
        del self._pending[:excess]
        self.num_lost_bytes += excess

    def is_gone(self) -> bool:
        """Tell whether the open file is no longer the one at its path, so that nobody would see what is appended."""
        if self._fd is None:
            return False
        try:
            return not os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a server that does not answer
            return False

    def recreate(self, path: Path) -> bool:
        """Make the file anew at `path`, with what it holds, which is there for as long as it is open.

        Returns whether that was to be done; a file that is there stays as it is.
        """
        old, size, waiting = self._fd, self._size, bytes(self._pending)
        if path == self.path and not self.is_gone():
            return False
        with contextlib.suppress(OSError):  # what somebody has put there
            path.unlink()
        self.path, self._fd, self._size, self._is_named_on_disk = path, None, 0, False
        self._pending.clear()
        if old is not None:
            self._copy_from(old, size)
            os.close(old)
        self.hold(waiting)
        return True

    def _copy_from(self, fd: int, size: int) -> None:
        start = 0
        while start < size:
            try:
                data = pread(fd, min(_COPIED_BYTES, size - start), start)
            except OSError:  # it was taken away on the server, too
                data = b""
            if not data:
                self.num_lost_bytes += size - start
                return
            self.hold(data)
            with contextlib.suppress(OSError):  # a full disk; it waits, as all else does
                self.append(b"")
            start += len(data)

    def give_up(self) -> None:
        """Count what failed to be written as lost, instead of trying again."""
        self.num_lost_bytes += len(self._pending)
        self._pending.clear()

    def replace(self, data: bytes) -> None:
        """Put a file that holds `data` in the place of this one; what failed to be written before is to be none."""
        with replacing(self.path) as stream:
            stream.write(data)
        self._forget()
        self._fd = os.open(self.path, os.O_RDWR | BINARY)
        self._size = len(data)

    def sync(self) -> None:
        """Wait until what is written is on the disk."""
        if self._fd is not None:
            sync_file(self._fd)
            if not self._is_named_on_disk:
                sync_folder(self.path.parent)
                self._is_named_on_disk = True

    def _forget(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def close(self) -> None:
        """Flush the file to disk and close it."""
        if self._fd is not None:
            try:
                self.sync()
            except OSError:
                _log.debug("%s: could not be flushed to disk", self.path)
            self._forget()
