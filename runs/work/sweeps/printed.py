"""What the process of a trial printed, and by which signal it was killed: why it has no record, or no end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

__all__ = ["killed_text", "last_line", "size_of"]

_MOST_BYTES = 4096


def size_of(descriptor: int) -> int:
    """Return how long the file behind a descriptor is; 0 of what is no file."""
    return os.fstat(descriptor).st_size


def last_line(descriptor: int, start: int) -> str:
    """Return the last line with text that was printed into the file behind a descriptor; empty if there is none.

    Args:
        descriptor: It need not be readable. Of what is no file, such as a terminal, nothing is read.
        start: Where in the file to begin.
    """
    path = Path(f"/proc/self/fd/{descriptor}")
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as stream:
            stream.seek(max(start, os.fstat(stream.fileno()).st_size - _MOST_BYTES))
            lines = stream.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def killed_text(code: int) -> str:
    """Return by which signal a process was killed, of its exit code, which is negative."""
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}{', as when memory runs out' if -code == signal.SIGKILL else ''}"
