"""Starting programs that a signal does not reach."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

# Of Ctrl-Z. A program that it stops before it runs keeps the process that starts it (vfork) from stopping, and the
# shell waits for ever.
STOP = signal.SIGTSTP


@contextlib.contextmanager
def shielded(number: signal.Signals) -> Iterator[None]:
    """Start, in the block, programs that a signal does not reach; this thread gets it after the block."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
