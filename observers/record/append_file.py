"""Append-only files of whole records: a torn tail is cut off, and data that a full disk rejects is retried."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from sacristan.observers.record.files import BINARY, Descriptor, check_regular, replacing, sync_file, sync_folder

_log = logging.getLogger(__name__)
MAX_PENDING_BYTES = 64 * 2**20
# A multiple of a point's size.
_COPIED_BYTES = 24 * 2**18


class AppendFile:
    """An append-only file of whole records of `record_bytes` (0: a stream, None: lines); opening cuts off a torn tail.

    It is created with the first record. `note` receives offset and bytes of each write, `say` path and error if data
    has to wait; `num_lost_bytes` waited for too long.
    """

    def __init__(
        self,
        path: Path,
        record_bytes: int | None = None,
        note: Callable[[int, memoryview], None] | None = None,
        say: Callable[[Path, OSError], None] | None = None,
    ) -> None:
        self.path = path
        self.record_bytes = record_bytes
        self.num_lost_bytes = 0
        self._pending = bytearray()
        self._opened: Descriptor | None = None
        self._note = note
        self._say = say
        self._size = 0
        self._is_synced = self._is_named_on_disk = False

    @property
    def num_pending_bytes(self) -> int:
        """Bytes that could not be written and are retried."""
        return len(self._pending)

    @property
    def num_pending_lines(self) -> int:
        """Lines that could not be written and are retried."""
        return self._pending.count(b"\n")

    @property
    def num_records(self) -> int:
        """Records of fixed length, written or pending, once the file has been opened."""
        return (self._size + len(self._pending)) // (self.record_bytes or 1)

    @property
    def num_written(self) -> int:
        """Records of fixed length in the file, once it has been opened."""
        return self._size // (self.record_bytes or 1)

    def create(self) -> None:
        if self._opened is None:
            self._open()

    def append(self, data: bytes) -> None:
        """Write pending data, then whole records; after an OSError the file ends after one, and the rest is retried."""
        self._pending += data
        if not self._pending:
            return
        written = 0
        try:
            fd = self._descriptor()
            self._is_synced = False
            with memoryview(self._pending) as view:
                while written < len(view):
                    written += pwrite(fd, view[written:], self._size + written)
        except OSError:
            self._drop_written(self._whole_part(written))
            self._cut_tail()
            self._drop_oldest()
            raise
        self._drop_written(written)

    def write(self, data: bytes) -> None:
        """Append `data`, but `say` errors instead of raising; beyond `MAX_PENDING_BYTES` drop the oldest records."""
        try:
            self.append(data)
        except OSError as error:
            if self._say is not None:
                self._say(self.path, error)

    def hold(self, data: bytes) -> None:
        """Keep whole records for the next `append`; beyond `MAX_PENDING_BYTES`, the oldest are dropped."""
        self._pending += data
        self._drop_oldest()

    def _whole_part(self, written: int) -> int:
        """Return how many of the bytes written so far are whole records."""
        if self.record_bytes is None:
            return self._pending.rfind(b"\n", 0, written) + 1
        return written - written % (self.record_bytes or 1)

    def _drop_written(self, written: int) -> None:
        if self._note is not None and written:
            with memoryview(self._pending) as view:
                self._note(self._size, view[:written])
        self._size += written
        del self._pending[:written]

    def _descriptor(self) -> int:
        """Return the descriptor; raise OSError if it was closed and the file deleted, which is not created again."""
        if self._opened is None:
            return self._open()
        if not self._opened.is_open:
            if not self._opened.is_at(self.path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
            _log.warning(
                "%s was closed by other code of this process, as by os.closerange; it is opened again", self.path
            )
            return self._open()
        return self._opened.number

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | BINARY, 0o666)
        check_regular(fd, self.path)
        self._opened = Descriptor(fd)
        fd = self._opened.number
        size = os.fstat(fd).st_size
        self._size = self._whole(fd, size)
        if self._size != size:
            os.ftruncate(fd, self._size)
        return fd

    def _whole(self, fd: int, size: int) -> int:
        """Return the size of the file without its torn tail."""
        if self.record_bytes is not None:
            return size - size % (self.record_bytes or 1)
        end = size
        while end > 0:
            start = max(0, end - 65536)
            newline = pread(fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
        return 0

    def _cut_tail(self) -> None:
        """Remove the partial record of a failed write, so that readers find whole records only."""
        if self._opened is not None and self._opened.is_open:
            try:
                os.ftruncate(self._opened.number, self._size)
            except OSError:
                _log.debug("%s: the tail of a failed write stays until the next one", self.path)

    def _drop_oldest(self) -> None:
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
        """Tell whether the open file is no longer the one at its path, so that appended data would be invisible."""
        if self._opened is None:
            return False
        try:
            return not self._opened.is_at(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a server that does not answer
            return False

    def recreate(self, path: Path) -> bool:
        """Create the file at `path` with the content of the open one; return False if that is still there."""
        old, size, waiting = self._opened, self._size, bytes(self._pending)
        if path == self.path and not self.is_gone():
            return False
        with contextlib.suppress(OSError):  # another file of that name
            path.unlink()
        self.path, self._opened, self._size = path, None, 0
        self._is_synced = self._is_named_on_disk = False
        self._pending.clear()
        if old is not None:
            self._copy_from(old.number if old.is_open else -1, size)
            old.close()
        self.hold(waiting)
        return True

    def _copy_from(self, fd: int, size: int) -> None:
        start = 0
        while start < size:
            try:
                data = pread(fd, min(_COPIED_BYTES, size - start), start)
            except OSError:  # it is gone from the server, too
                data = b""
            if not data:
                self.num_lost_bytes += size - start
                return
            self.hold(data)
            with contextlib.suppress(OSError):  # a full disk; the data is retried as usual
                self.append(b"")
            start += len(data)

    def give_up(self) -> None:
        """Drop pending data, and count it as lost."""
        self.num_lost_bytes += len(self._pending)
        self._pending.clear()

    def replace(self, data: bytes) -> None:
        """Replace the file's content, atomically; no data may be pending."""
        with replacing(self.path) as stream:
            stream.write(data)
        self._forget()
        self._opened = Descriptor(os.open(self.path, os.O_RDWR | BINARY))
        self._size = len(data)

    def sync(self) -> None:
        """Wait until everything written is on the disk, unless it is there already."""
        if self._opened is None or self._is_synced:
            return
        # Before the wait, during which another thread may append.
        self._is_synced = True
        try:
            sync_file(self._descriptor())
            if not self._is_named_on_disk:
                sync_folder(self.path.parent)
                self._is_named_on_disk = True
        except OSError:
            self._is_synced = False
            raise

    def _forget(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def close(self) -> None:
        try:
            self.sync()
        except OSError:
            _log.debug("%s: could not be flushed to disk", self.path)
        self._forget()


# Windows has neither `os.pread` nor `os.pwrite`; there, one thread at a time moves the position of a file.
_moving = threading.Lock()


def _pread(descriptor: int, count: int, start: int) -> bytes:
    """Stand in for `os.pread`."""
    with _moving:
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, start, os.SEEK_SET)
            return os.read(descriptor, count)
        finally:
            os.lseek(descriptor, before, os.SEEK_SET)


def _pwrite(descriptor: int, data: bytes | memoryview, start: int) -> int:
    """Stand in for `os.pwrite`."""
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


# Calls of the system's own functions have no frame that a traceback could hold.
pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _pread)
pwrite: Callable[[int, bytes | memoryview, int], int] = getattr(os, "pwrite", _pwrite)
