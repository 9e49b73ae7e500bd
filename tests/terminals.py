"""Processes in a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.processes import Process

__all__ = ["run_in_terminal"]


def run_in_terminal(
    command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, columns: int = 80
) -> tuple[int, str]:
    """Run a command whose standard streams are a terminal.

    Args:
        command: The words.
        cwd: Its working folder.
        env: Its environment, by default that of the tests.
        columns: Width of the terminal.

    Returns:
        The exit code, and everything written, with plain line ends.
    """
    terminal, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    written = b""
    with Process(command, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
            while data := os.read(terminal, 65536):
                written += data
        code = process.wait(120)
    os.close(terminal)
    return code, written.decode().replace("\r\n", "\n")
