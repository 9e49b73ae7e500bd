"""Processes that end with this one, even where it is killed.

A small shell waits at the end of a pipe for that: the kernel closes the other end, whatever ends this process.
"""

from __future__ import annotations

import contextlib
import subprocess
from types import TracebackType

__all__ = ["EndsWithUs"]

# A line means that nothing is left to do. End of file without one: interrupt the group; kill what does not end.
_WATCH = """
read -r _ && exit
kill -s INT -- "-$0"
while [ "$1" -gt 0 ] && kill -s 0 -- "-$0"; do
    sleep 1
    set -- $(($1 - 1))
done
kill -s KILL -- "-$0"
"""


class EndsWithUs:
    """Lets a process and its group end when this process does, for a `with` block.

    Args:
        group: The group, which the process leads.
        bound_s: Seconds that it has to end by itself, after SIGINT.
    """

    def __init__(self, group: int, bound_s: int) -> None:
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, str(group), str(bound_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that a Ctrl-C does not end it
        )

    def release(self) -> None:
        """Let it go on alone."""
        with contextlib.suppress(BrokenPipeError):
            self._watch.communicate(b"\n")

    def __enter__(self) -> EndsWithUs:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()
