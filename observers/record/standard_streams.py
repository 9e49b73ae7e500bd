"""The standard streams of a process that was started without them, as `>&-` of a shell and some daemons do."""

from __future__ import annotations

import os
import sys

__all__ = ["open_standard_streams"]


def open_standard_streams() -> None:
    """Open on the null device what the process lacks of stdin, stdout and stderr.

    Without that, the next file that is opened gets the descriptor to which output goes.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            stream = os.fdopen(os.open(os.devnull, os.O_RDWR), mode, errors="backslashreplace")
            setattr(sys, name, stream)
            if stream.fileno() == descriptor:  # the lowest that is free
                os.set_inheritable(descriptor, True)
