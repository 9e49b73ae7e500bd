"""Pseudo-terminals: a program whose output is copied still sees a terminal.

They pass output on as it is: line feeds are translated once, by the terminal itself. Input, Ctrl-C and Ctrl-Z come from
the terminal, which stays the one that controls the processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from sacristan.observers.record.files import Descriptor

# The path of each pseudo-terminal that is open, and its terminal.
_open: dict[str, Descriptor] = {}


@contextlib.contextmanager
def opened_like(terminal: Descriptor) -> Iterator[tuple[int, int]]:
    """Yield both ends, to copy from and to print to, which the caller closes; raise OSError if there is none."""
    import termios

    source, target = os.openpty()
    with contextlib.suppress(termios.error):
        attributes = termios.tcgetattr(terminal.number)
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(target, termios.TCSANOW, attributes)
    path = os.ttyname(target)
    _open[path] = terminal
    resize()
    try:
        yield source, target
    finally:
        del _open[path]


def are_open() -> bool:
    """Return whether there is a pseudo-terminal to resize."""
    return bool(_open)


def resize() -> None:
    """Give all of them the size of their terminals."""
    import termios

    for path, terminal in _open.items():
        if not terminal.is_open:  # other code has closed it
            continue
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            # Opened each time: an end that forked children inherit would seem to be in use.
            target = os.open(path, os.O_RDWR | os.O_NOCTTY)
            try:
                termios.tcsetwinsize(target, termios.tcgetwinsize(terminal.number))
            finally:
                os.close(target)
