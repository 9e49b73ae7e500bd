"""The terminal of the person who started the run, past Sacred's capturing of stdout and stderr.

Sacred redirects the file descriptors 1 and 2 while a run is on. What is drawn for a person, such as a progress
bar, goes to a copy of descriptor 2 taken before, so that it is never recorded.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

__all__ = ["remember_terminal", "terminal"]

_terminal: TextIO | None = None


def remember_terminal() -> None:
    """Keep a copy of stderr if it is a terminal; calling it again changes nothing."""
    global _terminal
    if _terminal is None and getattr(sys.stderr, "isatty", bool)():
        _terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w")


def terminal() -> TextIO | None:
    """Return the terminal to draw on, or None if nobody watches."""
    return _terminal
