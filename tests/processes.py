"""Processes of the tests: started from a warm Python where that is possible, and gone when the tests are.

    from tests.processes import PIPE, Process, run

    done = run([sys.executable, "exp.py", "with", "epochs=1"], cwd=folder)
    with Process([sys.executable, "-m", "sacristan", "ls", "--follow"], stdout=PIPE) as process: ...

They take the place of `subprocess.run` and `subprocess.Popen`, and differ in this:

- A Python script or module is forked from a process that has imported torch and the like (`tests/warm_python.py`), and
  gets the lab's modules from there when it imports them (`tests/warm_modules.py`), which saves seconds; anything else,
  and with `cold=True` Python too, starts afresh. So does a process with another value of a variable that is read when a
  program starts, such as PYTHONHASHSEED.
- They have default signal handlers, whatever the tests were started with; `ignore` names signals they ignore.
- A process and all its descendants are killed when its `Process` is closed or collected, and when the tests end or die.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, CompletedProcess
from types import TracebackType
from typing import IO, Any

from tests.warm_python import start_child, starts_others

__all__ = [
    *("DEVNULL", "PIPE", "STDOUT", "Process"),
    *("become_worker", "imported", "launcher", "run", "shut_down", "warm_children"),
]

_SERVER = Path(__file__).with_name("warm_python.py")
# Lets a process of the tests start others by the same server.
ADDRESS_VARIABLE = "SACRISTAN_TEST_WARM_PYTHON"
# Commands that become an experiment.
_BECOMING = {"resume", "fork"}
_LAUNCHER = """#!{python} -S
import sys
sys.path[0] = {root!r}
from tests.processes import Process
with Process([sys.executable, *{words!r}, *sys.argv[1:]]) as process:
    code = process.wait()
sys.exit(code if code >= 0 else 128 - code)
"""


class Process:
    """A process, with the attributes and methods of `subprocess.Popen` that tests use.

    Args:
        command: Words, or a text for a shell.
        cwd, env, stdin, stdout, stderr, text, start_new_session, process_group: As of Popen.
        ignore: Signals that it ignores from its start.
        cold: Whether Python starts afresh, too.
        starts_python: Whether the Python that it starts by `subprocess` is warm as it is itself; by default those of
            `sacristan resume`, `fork`, `reproduce`, `sweep` and `work`, `sweep.run` and `sweep.agent` are.
        becomes_python: Whether the Python that it becomes by `os.execve` is warm, too; by default those of
            `sacristan resume` and `fork` are. Till then its signals meet a stand-in, which ends by them.

    Attributes:
        pid: Its number.
        returncode: Its exit code, negative for the signal that ended it; None as long as nobody has asked.
        stdin, stdout, stderr: Our ends of pipes.
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike] | str,
        *,
        cwd: str | os.PathLike | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO | None = None,
        stdout: int | IO | None = None,
        stderr: int | IO | None = None,
        text: bool = False,
        start_new_session: bool = False,
        process_group: int | None = None,
        ignore: Iterable[signal.Signals] = (),
        cold: bool = False,
        starts_python: bool | None = None,
        becomes_python: bool | None = None,
        _lab: tuple[Path, socket.socket] | None = None,
    ) -> None:
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else [os.fspath(word) for word in command]
        env = dict(os.environ if env is None else env)
        if starts_python is None:
            starts_python = starts_others(words)
        if becomes_python is None:
            becomes_python = words[1:3] == ["-m", "sacristan"] and not _BECOMING.isdisjoint(words)
        self.args, self._is_text = command, text
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        self._guardian = socket.socket(socket.AF_UNIX)
        self._answers = self._guardian.makefile("rb", buffering=0)  # else `wait` could wait for what was read already
        self._guardian.connect(_address())
        with contextlib.ExitStack() as ours:  # what the process alone keeps
            descriptors = [self._stream(0, stdin, text, ours), self._stream(1, stdout, text, ours)]
            descriptors.append(descriptors[1] if stderr == STDOUT else self._stream(2, stderr, text, ours))
            if _lab is not None:
                descriptors.append(_lab[1].fileno())
            socket.send_fds(self._guardian, [b"+"], descriptors)
        request = {
            "command": words,
            "cwd": str(Path.cwd() / (cwd or ".")),
            "env": env,
            "start_new_session": start_new_session,
            "process_group": process_group,
            "ignore": list(ignore),
            "descriptors": [] if _lab is None else [3],
            "cold": cold,
            "starts_python": starts_python,
            "becomes_python": becomes_python,
            "parent": None,
        } | ({} if _lab is None else {"lab": str(_lab[0])})
        with contextlib.suppress(BrokenPipeError):  # which the lack of an answer tells
            self._guardian.sendall(json.dumps(request).encode() + b"\n")
        self.pid: int = self._answer()["pid"]

    def _stream(self, place: int, given: int | IO | None, text: bool, ours: contextlib.ExitStack) -> int:
        if given is None:
            return place
        if given == DEVNULL:
            descriptor = os.open(os.devnull, os.O_RDWR)
        elif given == PIPE:
            ends = os.pipe()
            descriptor, kept = ends if place == 0 else ends[::-1]
            stream = io.FileIO(kept, "r" if place else "w")
            if text:
                stream = io.TextIOWrapper(io.BufferedReader(stream) if place else stream, write_through=True)
            elif place:
                stream = io.BufferedReader(stream)
            setattr(self, ("stdin", "stdout", "stderr")[place], stream)
        else:
            return given if isinstance(given, int) else given.fileno()
        ours.callback(os.close, descriptor)
        return descriptor

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""
        if self.returncode is None:
            if not select.select([self._guardian], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = self._answer()["returncode"]
        return self.returncode

    def _answer(self) -> dict[str, int]:
        with contextlib.suppress(ConnectionResetError):
            if line := self._answers.readline():
                return json.loads(line)
        raise RuntimeError("the warm process has ended, or the guardian that it forked; stderr says why")

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """End it with SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it; not its descendants."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Close its stdin, read its pipes until nobody holds them any more, wait for its end; return what it wrote."""
        if self.stdin is not None:
            self.stdin.close()
        deadline = None if timeout is None else time.monotonic() + timeout
        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        found: dict[Any, bytes] = dict.fromkeys(streams, b"")
        with selectors.DefaultSelector() as selector:
            for stream in streams:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(None if deadline is None else max(deadline - time.monotonic(), 0))
                if not ready:
                    raise subprocess.TimeoutExpired(self.args, timeout, *found.values())
                for key, _ in ready:
                    read = os.read(key.fd, 65536)
                    found[key.fileobj] += read
                    if not read:
                        selector.unregister(key.fileobj)
        self.wait(None if deadline is None else max(deadline - time.monotonic(), 0))
        written = {stream: _as_text(data) if self._is_text else data for stream, data in found.items()}
        return written.get(self.stdout), written.get(self.stderr)

    def close(self) -> None:
        """Kill it and all that it left behind; again without effect."""
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        if self._guardian.fileno() == -1:
            return
        with contextlib.suppress(OSError):
            self._guardian.shutdown(socket.SHUT_WR)
        with contextlib.suppress(RuntimeError):
            self.wait()
        self._answers.read()  # the guardian has ended, and all others before it
        self._answers.close()
        self._guardian.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_answers"):
            self.close()


def run(
    command: Sequence[str | os.PathLike] | str,
    *,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> CompletedProcess:
    """Run a process to its end, as `subprocess.run` does; options are those of `Process`."""
    if capture_output:
        options |= {"stdout": PIPE, "stderr": PIPE}
    with Process(command, **options) as process:
        done = CompletedProcess(command, None, *process.communicate(timeout))
        done.returncode = process.returncode
    if check:
        done.check_returncode()
    return done


@contextlib.contextmanager
def warm_children(*, starts_python: bool = False) -> Iterator[None]:
    """Let what `subprocess` starts in this process be warm where that is possible, for a `with` block.

    Args:
        starts_python: Whether those have a warm process of their own, as pytest's workers need it.
    """
    original = subprocess._fork_exec, subprocess._USE_POSIX_SPAWN
    subprocess._fork_exec = functools.partial(start_child, _address(), original[0], starts_python=starts_python)
    subprocess._USE_POSIX_SPAWN = False  # by which Python 3.13 would start most children
    try:
        yield
    finally:
        subprocess._fork_exec, subprocess._USE_POSIX_SPAWN = original


@contextlib.contextmanager
def imported(lab: Path) -> Iterator[None]:
    """Let the processes that are started in a `with` block find the modules of a copy of the lab imported.

    It takes as long as two or three processes that import them by themselves.
    """
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        address = f"{folder}/socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(128)
            server = Process([], cwd="/", stdin=PIPE, stdout=DEVNULL, _lab=(lab, listener))
        with server:
            _servers.append(address)
            try:
                yield
            finally:
                _servers.remove(address)


def launcher(folder: Path) -> dict[str, str]:
    """Write a program `python` that starts warm, too, and return the variables that let a shell find it.

    The process that it waits for has another pid, and signals to the one do not reach the other.
    """
    folder.mkdir()
    for name, words in (("python", []), ("sacristan", ["-m", "sacristan"])):
        program = folder / name
        program.write_text(_LAUNCHER.format(python=sys.executable, root=str(_SERVER.parents[1]), words=words))
        program.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", ADDRESS_VARIABLE: _address().replace("\0", "@")}


def become_worker() -> None:
    """Keep the warm process that `warm_children` gave this one for `Process` alone: let its own `subprocess` be cold.

    The lab's modules are imported here as everywhere, not taken from the warm process.
    """
    start = subprocess._fork_exec
    if isinstance(start, functools.partial):
        address, subprocess._fork_exec = start.args
        _servers.append(address)
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ImportedModules"]


def shut_down() -> None:
    """End the warm process; processes that were started from it go on, until they are closed."""
    if _server.cache_info().currsize:
        _server().end()
        _server.cache_clear()


def _environment() -> dict[str, str]:
    """Return the environment of the warm process, which has to be without threads when it forks."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


class _Server:
    """The warm process; that of the process which has started this one, where the environment names its address."""

    def __init__(self) -> None:
        self._process = None
        self.address = os.environ.get(ADDRESS_VARIABLE, "").replace("@", "\0")
        if not self.address:
            self._start()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm-", ignore_cleanup_errors=True)
        self.address = f"{self._folder.name}/socket"
        theirs, self._lifetime = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(128)
            self._process = subprocess.Popen(
                [sys.executable, str(_SERVER), str(listener.fileno()), str(theirs)],
                cwd="/",
                env=_environment(),
                stdin=DEVNULL,
                stdout=DEVNULL,
                pass_fds=[listener.fileno(), theirs],
                start_new_session=True,
            )
        os.close(theirs)

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        if self._process is not None:
            os.close(self._lifetime)
            self._process.wait()
            self._folder.cleanup()


_server = functools.cache(_Server)
# The addresses of others: a worker's own, and those that `imported` has started, the innermost one last.
_servers: list[str] = []


def _address() -> str:
    return _servers[-1] if _servers else _server().address


def _as_text(data: bytes) -> str:
    return data.decode().replace("\r\n", "\n").replace("\r", "\n")
