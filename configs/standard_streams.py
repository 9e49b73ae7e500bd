"""The standard streams of a process that was started without them, as `>&-` of a shell and some daemons do."""

from __future__ import annotations

import os
import sys

__all__ = ["hold_standard_descriptors", "open_standard_streams"]


def hold_standard_descriptors() -> None:
    """Open the null device for reading on each missing descriptor from 0 to 2; writes to it fail.

    Without that, the next file that is opened gets the descriptor to which output goes.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDONLY)  # the lowest that is free
        if descriptor > 2:
            os.close(descriptor)
            return
        os.set_inheritable(descriptor, True)


def open_standard_streams() -> None:
    """Replace missing stdin, stdout and stderr by the null device."""
    hold_standard_descriptors()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = os.fdopen(os.open(os.devnull, os.O_RDWR), mode, errors="backslashreplace")
            setattr(sys, name, stream)
