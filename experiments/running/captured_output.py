"""The output of a run: read in parts while it is captured, and kept out of memory.

Sacred decodes the file while it grows, where a character may be half written, and leaves out the last output of a
failing run. With `--capture=sys` it keeps the output in memory, four bytes a character, and loses what is printed while
it reads.

Sacred redirects the file descriptors 1 and 2 while a run is on. What is drawn for a person, such as a progress bar,
goes to a copy of descriptor 2 taken before, `terminal`, so that it is never recorded.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

from sacred import stdout_capturing
from sacred.stdout_capturing import CapturedStdout, TeeingStreamProxy, flush

from sacristan.configs.shielding import STOP, shielded
from sacristan.experiments.running import pseudo_terminals
from sacristan.observers.record.append_file import pread
from sacristan.observers.record.copies import draw_on
from sacristan.observers.record.files import Descriptor

_log = logging.getLogger(__name__)

_sacreds_tee = stdout_capturing.tee_output_fd

PART_BYTES = 2**20
# How long processes that still print are waited for, when the run ends.
_PATIENCE_S = 1.0
# Processes that libraries start, and that end after the one that started them.
_HELPERS = r"multiprocessing\.(resource_tracker|forkserver)|\bloky\b|wandb|_inductor/compile_worker"


def read_parts(out: CapturedStdout) -> Iterator[str]:
    """Yield whole characters of the output since the last call, in parts of `PART_BYTES`; the last if closed."""
    if out.closed:
        last, out.final = out.final or "", None
        yield last
        return
    try:
        descriptor = out.buffer.fileno()
    except (AttributeError, OSError):
        yield out.get()
        return
    end = os.fstat(descriptor).st_size
    while out.read_position < end:
        data = pread(descriptor, min(PART_BYTES, end - out.read_position), out.read_position)
        data = data[: _whole_characters(data)]
        if not data:
            return
        out.read_position += len(data)
        yield data.decode("utf-8", "replace")


@contextlib.contextmanager
def capturing_in_order(*, keeps_terminals: bool = False) -> Iterator[None]:
    """Make Sacred capture descriptors by `tee_in_order` in the block."""
    tee = partial(tee_in_order, keeps_terminals=keeps_terminals)
    before, stdout_capturing.tee_output_fd = stdout_capturing.tee_output_fd, tee
    try:
        yield
    finally:
        stdout_capturing.tee_output_fd = before


@contextlib.contextmanager
def tee_in_order(*, keeps_terminals: bool = False) -> Iterator[CapturedStdout]:
    """Copy the descriptors 1 and 2 to a file, in the order of writing, as Sacred's `tee_output_fd` does.

    Where both are the same, as on a terminal, one process copies them, whole lines in order. With `keeps_terminals`,
    descriptors that are terminals are so within the block.
    """
    with contextlib.ExitStack() as undo:
        saved = [Descriptor(os.dup(1)), Descriptor(os.dup(2))]
        for descriptor in saved:
            undo.callback(descriptor.close)
        handle, path = tempfile.mkstemp()
        target = _TeedFile(handle, path)
        undo.callback(target.close)
        copied = saved[:1] if os.path.sameopenfile(1, 2) else saved
        try:
            tees = [undo.enter_context(_tee(to, path, keeps_terminals=keeps_terminals)) for to in copied]
        except OSError:  # there is no tee
            yield undo.enter_context(_sacreds_tee())
            return
        flush()
        for number, tee in ((1, tees[0]), (2, tees[-1])):
            os.dup2(tee.input.number, number)
        for tee in tees:
            tee.input.close()
        undo.enter_context(_line_by_line())
        out = CapturedStdout(target)
        try:
            yield out
        finally:
            with contextlib.suppress(OSError):  # the run has closed them
                flush()
            for number, descriptor, tee in ((1, saved[0], tees[0]), (2, saved[1], tees[-1])):
                _restore(number, descriptor, tee.process)
            for tee in tees:
                _end(tee)
            out.finalize()


class _Tee(NamedTuple):
    """A process that copies the output from `input`, a pipe or a pseudo-terminal."""

    process: subprocess.Popen[bytes]
    input: Descriptor


@contextlib.contextmanager
def _tee(to: Descriptor, path: str, *, keeps_terminals: bool) -> Iterator[_Tee]:
    """Start a process that copies to a descriptor and a file."""
    with contextlib.ExitStack() as undo:
        is_terminal = keeps_terminals and os.isatty(to.number)
        source, target = undo.enter_context(pseudo_terminals.opened_like(to)) if is_terminal else os.pipe()
        try:
            with shielded(STOP):
                process = subprocess.Popen(
                    ["tee", "-a", path],
                    start_new_session=True,  # so that a Ctrl-C does not reach it
                    stdin=source,
                    stdout=to.number,
                    stderr=subprocess.DEVNULL if is_terminal else None,  # the end of a terminal is an error to it
                )
        except OSError:
            os.close(target)
            raise
        finally:
            os.close(source)
        tee = _Tee(process, Descriptor(target))
        undo.callback(tee.input.close)
        yield tee


def _restore(number: int, saved: Descriptor, tee: subprocess.Popen[bytes]) -> None:
    """Restore the target that a standard stream had before the run."""
    if saved.is_open:
        os.dup2(saved.number, number)
        return
    with contextlib.suppress(OSError):  # other code closed it, and only `tee` still has it open
        again = Descriptor(os.open(f"/proc/{tee.pid}/fd/1", os.O_WRONLY | os.O_APPEND))
        os.dup2(again.number, number)
        again.close()


def _end(tee: _Tee) -> None:
    """Wait until all is copied; stop a `tee` that is idle, or after a second: another process may hold its input."""
    deadline = time.monotonic() + _PATIENCE_S
    process = tee.process
    while not _has_ended(process):
        holders = {} if time.monotonic() < deadline and not _is_idle(process) else _holders(tee)
        if time.monotonic() > deadline:
            names = ", ".join(f"{name} (process {pid})" for pid, (name, _) in holders.items()) or "another process"
            _log.warning("the output of the run is still held by %s; what it prints from now on is lost", names)
        if time.monotonic() > deadline or (holders and all(is_helper for _, is_helper in holders.values())):
            process.terminate()
            break
    process.wait()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, which it may still do within 20 ms."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.02)
    return process.returncode is not None


def _is_idle(tee: subprocess.Popen[bytes]) -> bool:
    """Return whether `tee` waits for input, so everything is copied; False if the system does not say."""
    try:
        # The number of the system call, and its first argument: the descriptor that it waits for.
        return Path(f"/proc/{tee.pid}/syscall").read_text().split()[1:2] == ["0x0"]
    except OSError:
        return False


def _holders(tee: _Tee) -> dict[int, tuple[str, bool]]:
    """Return the names of other processes that hold the input, and whether each is a helper of a library."""
    holders = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(path.name) not in (tee.process.pid, os.getpid()) and any(
                handle.name in ("1", "2") and tee.input.is_at(handle) for handle in (path / "fd").iterdir()
            ):
                words = (path / "cmdline").read_bytes().decode("utf-8", "replace")
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                is_helper = parent == os.getpid() and re.search(_HELPERS, words) is not None
                holders[int(path.name)] = (path / "comm").read_text().strip(), is_helper
    return holders


@contextlib.contextmanager
def _line_by_line() -> Iterator[None]:
    """Flush `sys.stdout`, and a stream behind its replacement, after each line in the block."""
    passed_on = [each for each in getattr(sys.stdout, "__dict__", {}).values() if _descriptor(each) == 1]
    texts = [each for each in (sys.stdout, *passed_on) if isinstance(each, io.TextIOWrapper)]
    kept_back = [each for each in texts if not each.line_buffering]
    for each in kept_back:
        each.reconfigure(line_buffering=True)
    try:
        yield
    finally:
        for each in kept_back:
            if not each.closed:
                each.reconfigure(line_buffering=False)


def take_from_memory(out: CapturedStdout) -> None:
    """Capture output in a file instead of memory, in place, as `--capture=fd` does, if one can be created."""
    memory = out.buffer
    if not isinstance(memory, io.StringIO):
        return
    try:
        file = OutputFile()
    except OSError as error:
        _log.warning("output is captured in memory (%s)", error.strerror)
        return
    before = memory.getvalue()
    file.write(before)
    streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
    for stream in streams:  # Sacred's TeeingStreamProxy
        if getattr(stream, "_self_out", None) is memory:
            stream._self_out = file
    file.write(memory.getvalue()[len(before) :])
    out.buffer, out.read_position = file, 0


def record_replaced(out: CapturedStdout) -> Callable[[], None]:
    """Record the output to a replaced `sys.stdout` or `sys.stderr`, until the returned function restores the streams.

    In a notebook, under pytest and in `redirect_stdout`, what is printed never reaches the descriptors that
    `--capture=fd` records. Handlers of the root logger that write to such a stream are recorded as well.
    """
    names = [name for number, name in ((1, "stdout"), (2, "stderr")) if not _reaches(getattr(sys, name), number)]
    if not names or not isinstance(getattr(out.buffer, "name", None), str):  # in memory, Sacred takes both streams
        return lambda: None
    try:
        file = OutputFile(Path(out.buffer.name).open("ab", buffering=0))  # noqa: SIM115 - it is closed by `close`
    except OSError as error:
        _log.warning("what is printed to %s cannot be captured (%s)", " and ".join(names), error.strerror)
        return lambda: None
    undo = contextlib.ExitStack()
    undo.callback(file.close)
    for name in names:
        stream = getattr(sys, name)
        proxy = TeeingStreamProxy(stream, file)
        setattr(sys, name, proxy)
        undo.callback(_put_back, name, stream, proxy)
        for handler in logging.root.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
                handler.setStream(proxy)
                undo.callback(handler.setStream, stream)
    return undo.close


def _put_back(name: str, stream: Any, proxy: TeeingStreamProxy) -> None:
    if getattr(sys, name) is proxy:  # else somebody has replaced it since
        setattr(sys, name, stream)


def _reaches(stream: Any, descriptor: int) -> bool:
    """Return whether a stream writes to a descriptor, directly or through a stream that it forwards to."""
    parts = (stream, *getattr(stream, "__dict__", {}).values())
    return stream is None or any(_descriptor(part) == descriptor for part in parts)


def _descriptor(stream: Any) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError, TypeError):
        return None


class OutputFile:
    """A file, temporary by default, with what Sacred needs, that any thread prints to and that never raises."""

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._file = file or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it is closed by `close`
        self._lock = threading.Lock()
        self._position = 0
        self._is_full = False

    def write(self, text: str) -> int:
        """Append a text; what the disk refuses is lost, with one warning. Returns its length even then, for `print`."""
        view = memoryview(text.encode("utf-8", "backslashreplace"))
        with self._lock:
            try:
                while view:
                    view = view[self._file.write(view) :]
            except (OSError, ValueError) as error:  # the disk is full, or somebody prints after the end
                if not self._is_full:
                    self._is_full = True
                    _log.warning("output cannot be captured (%s); the run continues", error)
        return len(text)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, position: int) -> int:
        """Set where `read` starts, in bytes; writing stays in place, because forked children share its position."""
        self._position = position
        return position

    def read(self) -> str:
        end = os.fstat(self.fileno()).st_size
        data = pread(self.fileno(), max(0, end - self._position), self._position)
        self._position += len(data)
        return data.decode("utf-8", "replace")

    def tell(self) -> int:
        return self._position

    @property
    def closed(self) -> bool:
        """True if the file can no longer be written."""
        return self._file.closed

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it could not be made
            self._file.close()


class _TeedFile(OutputFile):
    """The file that `tee` writes; reopened if other code has closed it, and removed by the process that made it."""

    def __init__(self, handle: int, path: str) -> None:
        self._pid = os.getpid()
        self._descriptor: Descriptor | None = Descriptor(handle)
        self.name = path
        self._position = 0

    def fileno(self) -> int:
        if self._descriptor is not None and not self._descriptor.is_open:
            self._descriptor = Descriptor(os.open(self.name, os.O_RDWR))
        return -1 if self._descriptor is None else self._descriptor.number

    @property
    def closed(self) -> bool:
        return self._descriptor is None

    def close(self) -> None:
        if self._descriptor is not None:
            self._descriptor.close()
            if self._pid == os.getpid():
                Path(self.name).unlink(missing_ok=True)
        self._descriptor = None

    def __del__(self) -> None:
        self.close()


class Spill:
    """A text that grows: in memory at first, in a temporary file when it gets long."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(PART_BYTES, buffering=0)  # noqa: SIM115 - it lives as long as this object
        self._is_full = False

    def append(self, text: str) -> None:
        """Append a text, with surrogates of undecodable output; what the disk refuses is lost, with one warning."""
        view = memoryview(text.encode("utf-8", "surrogatepass"))
        try:
            self._file.seek(0, os.SEEK_END)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            if not self._is_full:
                self._is_full = True
                _log.warning("captured_out of the run leaves output out (%s); the record has it", error.strerror)

    def text(self) -> str:
        self._file.seek(0)
        return self._file.read().decode("utf-8", "replace")

    def __del__(self) -> None:
        self._file.close()


def _whole_characters(data: bytes) -> int:
    """Return the length of `data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) - back if length > back else len(data)
    return len(data)


_terminal: TextIO | None = None


def remember_terminal() -> None:
    """Keep a copy of stderr if it is a terminal, for the progress of copies, too; further calls change nothing."""
    global _terminal
    if _terminal is None and getattr(sys.stderr, "isatty", bool)():
        _terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w")
        draw_on(_terminal)


def terminal() -> TextIO | None:
    """Return the terminal to draw on; None if nobody watches."""
    return _terminal
