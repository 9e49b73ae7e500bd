"""The standard streams of a process that was started without them, as `>&-` of a shell and some daemons do."""

from __future__ import annotations

import os
import sys

__all__ = ["hold_standard_descriptors", "open_standard_streams"]


def hold_standard_descriptors() -> None:
    """Open the null device on what the process lacks of the descriptors 0 to 2; what writes to them gets an error.

    Without that, the next file that is opened gets the descriptor to which output goes.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDONLY)  # the lowest that is free
        if descriptor > 2:
            os.close(descriptor)
            return
        os.set_inheritable(descriptor, True)


def open_standard_streams() -> None:
    """Give the process what it lacks of stdin, stdout and stderr, without anything to read, or anybody who reads."""
    hold_standard_descriptors()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = os.fdopen(os.open(os.devnull, os.O_RDWR), mode, errors="backslashreplace")
            setattr(sys, name, stream)
