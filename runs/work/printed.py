"""Files that processes print to; their last lines say why a process recorded nothing."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO

__all__ = ["Printed", "printed_lines"]

_MOST_LINES, _MOST_BYTES = 20, 4096


class Printed(contextlib.AbstractContextManager["Printed"]):
    """A file that a process prints to, for a `with` block that closes it.

    Args:
        target: A stream, which is closed, or a descriptor, which stays open. Other processes may print to it as well.
    """

    def __init__(self, target: IO[bytes] | int) -> None:
        self._stream = None if isinstance(target, int) else target
        self.descriptor = target if isinstance(target, int) else target.fileno()
        self._start = os.fstat(self.descriptor).st_size

    def lines(self) -> list[str]:
        """Return the last lines that were printed since this object was made."""
        # A log is open for writing alone, and a temporary file has no path everywhere.
        is_log = self._stream is None
        return printed_lines(Path(f"/proc/self/fd/{self.descriptor}") if is_log else self.descriptor, self._start)

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()


def printed_lines(file: Path | int, start: int) -> list[str]:
    """Return the last lines with text in a file, from byte `start` on; none of a terminal or an unreadable file."""
    try:
        if isinstance(file, Path) and not file.is_file():
            return []
        with open(file, "rb", closefd=isinstance(file, Path)) as stream:
            stream.seek(max(start, os.fstat(stream.fileno()).st_size - _MOST_BYTES))
            lines = stream.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()][-_MOST_LINES:]
