"""Reading what a run prints while it is captured, without taking characters apart.

Sacred decodes the file while it grows, where a character may be half written, and leaves out what a failing run wrote
last.
"""

from __future__ import annotations

import os

from sacred.stdout_capturing import CapturedStdout

__all__ = ["read_new"]


def read_new(out: CapturedStdout) -> str:
    """Return what came since the last call, up to the last whole character; of a closed one, what it ended with.

    Args:
        out: What Sacred captures the run's output in.
    """
    if out.closed:
        last, out.final = out.final or "", None
        return last
    try:
        descriptor = out.buffer.fileno()
    except (AttributeError, OSError):
        return out.get()
    size = os.fstat(descriptor).st_size
    data = os.pread(descriptor, size - out.read_position, out.read_position)
    data = data[: _whole_characters(data)]
    out.read_position += len(data)
    return data.decode("utf-8", "replace")


def _whole_characters(data: bytes) -> int:
    """Return the length of `data` without a UTF-8 character that is cut off at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) - back if length > back else len(data)
    return len(data)
