"""Processes forked from a warm Python, which has imported third-party packages once.

    with WarmPython() as warm, warm.start(launch, output=log.fileno()) as job:
        while (code := job.poll()) is None:
            for event in job.events(timeout=1.0):
                ...

A launch behaves like a fresh process, without the seconds and the CPU time that importing torch takes. Each process
imports the lab itself from disk. `sacristan.runs.work.warm_server` says what differs, and when a process starts in a
fresh Python instead, with the same protocol.

When this process ends, for whatever reason, the warm one ends with all processes that it started: they get SIGTERM, so
that they save their states, and SIGKILL when they take too long.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sacristan.observers.record.identity import TRIAL_VARIABLE
from sacristan.runs.errors import LaunchError
from sacristan.runs.rerun.launching import Launch
from sacristan.runs.work.warm_server import END_BOUND_S, HEADER

# What experiments and their observers import sooner or later; packages that are not installed are skipped.
PACKAGES = (
    *("numpy", "torch", "torch._dynamo", "torch.utils.data", "einops", "scipy.stats", "sklearn.datasets", "pandas"),
    *("yaml", "tqdm", "psutil", "pynvml", "cpuinfo", "PIL.Image", "rich.console", "rich.table", "pymongo", "gridfs"),
    *("sacred", "sacred.observers", "sacred.commandline_options", "google_crc32c", "torch.utils.tensorboard"),
)
_SERVER = Path(__file__).with_name("warm_server.py")


@dataclasses.dataclass(frozen=True)
class Event:
    """Event that a process reports about its run.

    `kind` is `ready`, when it asks whether its run may begin; `started`, with uid and folder if the run is recorded; or
    `report`, for a value of the reported metric.
    """

    kind: str
    uid: str | None = None
    folder: str | None = None
    name: str = ""
    value: float = float("nan")
    step: float = 0
    lease: Mapping[str, Any] | None = None


class WarmPython(contextlib.AbstractContextManager["WarmPython"]):
    """A Python that has imported packages, and forks a process for each launch; for any number of threads.

    It begins to import packages, never those of the lab, when this object is made; only the first launch waits for
    that. All processes get `environment` in addition to the environment of this one.
    """

    def __init__(self, packages: Iterable[str] = PACKAGES, environment: Mapping[str, str] | None = None) -> None:
        self._packages = list(packages)
        self._environment = dict(environment or {})
        self._lock = threading.Lock()
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        own_end, server_end = socket.socketpair()
        # Threads of arrow's allocator would prevent forks. Modules of the lab must not be found.
        environment = {**os.environ, **self._environment, "JE_ARROW_MALLOC_CONF": "background_thread:false"}
        for name in ("PYTHONPATH", TRIAL_VARIABLE):
            environment.pop(name, None)
        with server_end:
            self._process = subprocess.Popen(
                [sys.executable, str(_SERVER), str(server_end.fileno()), str(os.getpid()), *self._packages],
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[server_end.fileno()],
                start_new_session=True,  # a Ctrl-C reaches the worker alone, which interrupts the others
            )
        self._socket = own_end

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(
        self,
        launch: Launch,
        *,
        output: int | None = None,
        trial: Mapping[str, Any] | None = None,
        hears: bool = True,
    ) -> Job:
        """Start a process, which leads a process group of its own.

        Without an `output`, it prints to stdout and stderr of this process. `trial` holds the facts about its trial:
        `sweep`, `trial`, `attempt` and `parameters`, which its record keeps; `metric`, which it reports; whether it
        `prunes`, so that it waits for an answer to each report; and whether it `asks`, so that it waits for an answer
        before its run begins. A process that starts others for its run, as torchrun does, cannot report events
        (`hears`).
        """
        if not launch.cwd.is_dir():
            raise LaunchError(f"{launch.text} cannot be started in {launch.cwd} (No such file or directory)")
        request = {
            "command": list(launch.command),
            "cwd": str(launch.cwd.absolute()),
            "env": launch.environ(self._environment),
            "trial": dict(trial or {}),
            "variable": TRIAL_VARIABLE if hears else "",
        }
        out = [1, 2] if output is None else [output, output]
        with self._lock:
            if self._is_closed:
                raise LaunchError(f"{launch.text} cannot be started: the warm process is closed")
            try:
                return self._start(request, out)
            except (OSError, EOFError):  # it was killed
                self._end()
                self._begin()
            try:
                return self._start(request, out)
            except (OSError, EOFError) as error:
                raise LaunchError(f"{launch.text} cannot be started: the warm process has ended") from error

    def _start(self, request: Mapping[str, Any], out: Sequence[int]) -> Job:
        text = json.dumps(request).encode()
        line, process_end = socket.socketpair()
        report, reported = os.pipe()
        try:
            with process_end:
                socket.send_fds(self._socket, [HEADER.pack(len(text))], [*out, process_end.fileno(), reported])
            os.close(reported)
            reported = -1
            self._socket.sendall(text)
            return Job(line, report)
        except BaseException:
            line.close()
            for descriptor in (report, reported):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            raise

    def close(self) -> None:
        """End it and all processes that it started: by SIGTERM, and by SIGKILL when they take too long."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._end()

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.close()


class Job(contextlib.AbstractContextManager["Job"]):
    """A process that was started, and leads a process group; for one thread. `cold` says why it was not forked.

    Leaving its `with` block before it has ended interrupts it, as Ctrl-C does, and kills it when it takes too long.
    """

    def __init__(self, line: socket.socket, report: int) -> None:
        self._line, self._report = line, report
        self._line.setblocking(False)
        self._heard, self._told = b"", b""
        self._is_orphan = False
        self._code: int | None = None
        begun = self._read_report()
        if not begun:
            raise EOFError
        if "error" in begun:
            raise LaunchError(f"no process can be started ({begun['error']})")
        self.pid: int = begun["pid"]
        self.cold: str = begun["cold"]

    def _read_report(self) -> dict[str, Any]:
        """Wait for the next report of the warm process; return an empty one if the warm process is gone."""
        while b"\n" not in self._told:
            read = os.read(self._report, 4096)
            if not read:
                return {}
            self._told += read
        text, _, self._told = self._told.partition(b"\n")
        return json.loads(text)

    def events(self, timeout: float | None = 0.0) -> list[Event]:
        """Return the events that the process has reported since the last call, in order.

        None of `timeout` (in seconds) waits forever for the first event or the end of the process. Events reported
        before the end are returned after it as well.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            is_over = self.poll() is not None  # events from before its end are read after this
            events = self._hear()
            if events or is_over:
                return events
            left = None if until is None else max(until - time.monotonic(), 0)
            if not select.select(self.watched(), [], [], left)[0]:
                return []

    def watched(self) -> list[Any]:
        """Return what `select` can wait on: readable once the process has reported an event or has ended."""
        return [end for end in (self._report, self._line) if end != self._line or self._line.fileno() != -1]

    def _hear(self) -> list[Event]:
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while self._line.fileno() != -1:
                read = self._line.recv(65536)
                if not read:
                    self._line.close()
                self._heard += read
        *lines, self._heard = self._heard.split(b"\n")
        return [Event(**json.loads(line)) for line in lines]

    def answer(self, prune: bool) -> None:
        """Answer a report of a trial that `prunes`, which waits for it; ignore a process that has ended.

        With `prune`, the run ends here, as PRUNED, and its record stays whole.
        """
        self._tell({"prune": bool(prune)})

    def let_begin(self, may_begin: bool) -> None:
        """Answer the event `ready` of a process that `asks`, which waits for it; ignore a process that has ended.

        If its run may not begin, the process ends with an error, and records nothing.
        """
        self._tell({"begin": may_begin})

    def _tell(self, answer: Mapping[str, bool]) -> None:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            self._line.send(json.dumps(answer).encode() + b"\n")

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal, that of SIGKILL if nobody knows it; None while it runs."""
        if self._code is None and self._report != -1 and select.select([self._report], [], [], 0)[0]:
            report = {} if self._is_orphan else self._read_report()
            if report or self._is_orphan:
                self._code = report.get("code", -signal.SIGKILL)
            else:
                self._follow()
        return self._code

    def _follow(self) -> None:
        """Watch the process itself, because the warm one was killed, which sent it SIGTERM."""
        try:
            process = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            self._code = -signal.SIGKILL
        else:
            os.close(self._report)
            self._report, self._is_orphan = process, True

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end, at most `timeout` seconds; return the exit code, None if the process still runs."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if until is None else max(until - time.monotonic(), 0)
            if not select.select([self._report], [], [], left)[0]:
                break
        return self._code

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Send the process and its children a signal, as Ctrl-C does; a run saves its state and is INTERRUPTED."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        self.interrupt(signal.SIGKILL)

    def close(self) -> None:
        """Interrupt it if it runs, kill it if that takes too long, and wait for its end."""
        if self._report == -1:
            return
        try:
            if self.poll() is None:
                self.interrupt()
                if self.wait(END_BOUND_S) is None:
                    self.kill()
                    self.wait()
        finally:
            self.kill()
            os.close(self._report)
            self._report = -1
            self._line.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_for_any(jobs: Iterable[Job], timeout: float | None = None) -> None:
    """Wait until one of the jobs has reported an event or has ended, at most `timeout` seconds; None waits forever."""
    select.select([end for job in jobs for end in job.watched()], [], [], timeout)
