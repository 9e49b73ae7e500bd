"""Output of a trial's process, and the signal that killed it: the reason for a missing record or end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

__all__ = ["killed_text", "last_line", "path_of", "size_of"]

_MOST_BYTES = 4096


def size_of(descriptor: int) -> int:
    """Return how long the file behind a descriptor is; 0 of what is no file."""
    return os.fstat(descriptor).st_size


def path_of(descriptor: int) -> Path:
    """Return a path of what is behind a descriptor, which need not be readable."""
    return Path(f"/proc/self/fd/{descriptor}")


def last_line(path: Path, start: int) -> str:
    """Return the last line with text in a file, from a place on; empty if there is none, or it is no file."""
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
    return f"was killed by {name}{', as by the kernel when memory runs out' if -code == signal.SIGKILL else ''}"
