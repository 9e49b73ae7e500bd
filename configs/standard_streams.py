"""The standard streams of a process: missing ones, as after `>&-` of a shell, and an output that is full or closed.

A command whose standard output cannot be written ends with one error, not with a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def hold_standard_descriptors() -> None:
    """Open the null device on missing descriptors 0 to 2, so that no file gets the descriptor that output goes to."""
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


# ---------------------------------------------------------------------- standard output that cannot be written


class OutputError(Exception):
    """Standard output cannot be written; no OSError, so that nobody takes it for the fault of another file.

    Attributes:
        code: Exit code of the command: 74 (EX_IOERR of sysexits.h), or 141, as a shell has it, if the reader is gone.
    """

    def __init__(self, message: str, code: int = 74) -> None:
        super().__init__(message)
        self.code = code

    def tell(self) -> None:
        """Print the error to stderr, unless the reader just stopped reading, as in `print_config | head`."""
        with contextlib.suppress(OSError):  # it is full as well
            if self.code == 74 and sys.stderr is not None:
                sys.stderr.write(f"error: {self}\n")


@contextlib.contextmanager
def checked_output() -> Iterator[None]:
    """Check that all output of the block arrives; end it with the first failure, even if that was caught inside."""
    stdout, stderr = sys.stdout, sys.stderr
    raw = _raw(stdout)
    if raw is None:  # somebody reads along in memory, as tests do
        yield
        return
    checked = _text_stream(raw, stdout)
    with contextlib.ExitStack() as opened:
        sys.stdout = checked
        if stderr is None:
            sys.stderr = opened.enter_context(Path(os.devnull).open("w"))
        try:
            yield
        finally:
            with contextlib.suppress(OutputError):
                checked.flush()
            sys.stdout, sys.stderr = stdout, stderr
            if stdout is None:
                checked.close()
            if raw.failure is not None:
                raise raw.failure


def _text_stream(raw: _Raw, like: Any) -> io.TextIOWrapper:
    """Return a text stream over a descriptor with the settings of another stream; None has Python's."""
    options: dict[str, Any] = {}
    if like is not None:
        names = ("encoding", "errors", "line_buffering", "write_through")
        options = {name: getattr(like, name) for name in names}
    is_unbuffered = options.get("write_through", False)  # `python -u`
    return io.TextIOWrapper(raw if is_unbuffered else io.BufferedWriter(raw), **options)


class _Raw(io.FileIO):
    """A descriptor that is written until it fails, and takes all from then on."""

    failure: OutputError | None = None

    def write(self, data: Any, /) -> int:
        if self.failure is not None:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self.failure = _output_error(error)
            raise self.failure from error


def _output_error(error: OSError) -> OutputError:
    why = "it is closed" if error.errno == errno.EBADF else error.strerror
    code = 141 if error.errno == errno.EPIPE else 74
    return OutputError(f"standard output cannot be written ({why}); the output is incomplete", code)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _raw(stdout: object) -> _Raw | None:
    """Return what writes to the descriptor of a stream; None if it is no plain text stream on standard output."""
    if stdout is None:  # it is closed
        is_taken = _is_open(1)  # by a file that was opened since
        hold_standard_descriptors()
        return _Raw(os.open(os.devnull, os.O_RDONLY), "wb") if is_taken else _Raw(1, "wb", closefd=False)
    if not isinstance(stdout, io.TextIOWrapper):
        return None
    try:
        is_standard = stdout.fileno() == 1
    except (OSError, ValueError):
        return None
    if not is_standard:
        return None
    raw = _Raw(1, "wb", closefd=False)
    try:
        stdout.flush()
    except OSError as error:
        raw.failure = _output_error(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where Python flushes it once more at its end
    return raw
