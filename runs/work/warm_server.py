"""The warm process: a Python that has imported third-party packages, and forks a process for each launch.

`sacristan.runs.work.warm` starts it by its path, so it needs nothing of the lab, which each forked process imports from
disk.

    server      imports the packages; forks, reaps and reports. When the worker that started it is gone, it ends its
                children, by SIGTERM first, and itself.
    child       leads its own process group and becomes `python SCRIPT ...` or `python -m MODULE ...`

A child differs from a fresh process in this: packages are in `sys.modules` already, the hash seed is that of the
server, `sys.flags` do not know of `-P`, and modules are not torn down at the end. If more would differ (a variable that
is read at the start, a file that hides a package, threads or a GPU context in the server), the child executes a fresh
Python.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import time
import types
import warnings
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

# Each process imports it from disk, so that the record has the code that ran.
LAB = "sacristan"
# Variables that are read when Python starts, or a package is imported.
READ_AT_START = (
    *("PYTHON", "LC_", "LANG", "LD_", "TZ", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_"),
    *("TORCH", "PYTORCH", "NUMPY_", "NPY_", "SCIPY_", "SKLEARN_", "TQDM_", "MPL"),
)
# Among them, those that packages set by themselves, and what a child takes over by hand.
SET_BY_PACKAGES = {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR", "PYTHONPATH"}
# Of Linux' prctl.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# What an agent sends: the length of a request, with descriptors for stdout, stderr, the trial's line, the status.
HEADER = struct.Struct("!I")
NUM_DESCRIPTORS = 4
# A child that is ended by SIGTERM saves its state, writes its record down and delivers it.
END_BOUND_S = 60.0
# Those that a child is to have as the server got them.
KEPT = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

STARTED_WITH = dict(os.environ)


def main() -> None:
    """Serve; in a child, become the requested program."""
    del sys.path[0]  # this folder
    agent = socket.socket(fileno=int(sys.argv[1]))
    ignored = [number for number in KEPT if signal.getsignal(number) == signal.SIG_IGN]
    for number in KEPT:
        signal.signal(number, signal.SIG_IGN)  # the end of the agent is what ends this process
    import_packages(sys.argv[3:])
    server = Server(agent, int(sys.argv[2]), hindrance())
    gc.collect()
    gc.freeze()
    use_huge_pages()
    request, line = server.serve()
    become(request, ignored)
    run(request, line)


def import_packages(names: list[str]) -> None:
    """Import packages; a missing or broken one fails again in the process that imports it."""
    gc.disable()
    show, warnings.showwarning = warnings.showwarning, lambda *_, **__: None
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    warnings.showwarning = show
    # At the end of each child, torch's operators would be taken apart, and compile times summed up for its log.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False
    with contextlib.suppress(KeyError, AttributeError):
        atexit.unregister(sys.modules["torch._dynamo"].utils.dump_compile_times)


def use_huge_pages() -> None:
    """Gather this process's memory in pages of 2 MiB, if the system can: a fork then takes half the time."""
    size, collapse = 2**21, 25  # Linux' MADV_COLLAPSE
    with contextlib.suppress(AttributeError, OSError):
        advise = ctypes.CDLL(None).madvise
        for line in Path("/proc/self/maps").read_text().splitlines():
            places, rights, _, _, inode, *name = line.split()
            if rights == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
                begin, end = (int(place, 16) for place in places.split("-"))
                for place in range(-(-begin // size) * size, end - size + 1, size):
                    advise(ctypes.c_void_p(place), ctypes.c_size_t(size), collapse)  # or not


def hindrance() -> str:
    """Return why children cannot be forked from the imported packages; empty if they can."""
    if LAB in sys.modules:
        return f"a package imports {LAB}, which each process must import itself"
    if sys.platform != "linux":
        return f"processes are not forked on {sys.platform}"
    # Pools that know of forks, such as that of OpenBLAS, end their threads at the first one.
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    if (count := len(list(Path("/proc/self/task").iterdir()))) > 1 or threading.active_count() > 1:
        return f"the packages have started {count - 1} threads, which a fork does not copy"
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith(("/dev/nvidia", "/dev/kfd")):
                return "the packages have opened a GPU, which a fork cannot share"
    return ""


class Server:
    """Forks children for an agent, reports their ends, and ends them with the agent, whose end `agent` tells."""

    def __init__(self, agent: socket.socket, pid: int, hindrance: str) -> None:
        self.agent = agent
        self.hindrance = hindrance
        # Where the end of each child is reported.
        self.reports: dict[int, int] = {}
        self.nothing = os.open(os.devnull, os.O_RDWR)
        self.libc = ctypes.CDLL(None)
        self.prctl(PR_SET_CHILD_SUBREAPER, 1)  # what trials leave behind is reaped here
        self.woken, self.waker = socket.socketpair()
        for end in (self.woken, self.waker):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        self.watched: list[Any] = [self.agent, self.woken]
        # The agent's end of the socket may be held by a process that it forked.
        self.agent_process = None
        with contextlib.suppress(AttributeError, OSError):
            self.agent_process = os.pidfd_open(pid)
            self.watched.append(self.agent_process)

    def prctl(self, option: int, value: int) -> None:
        with contextlib.suppress(AttributeError):
            self.libc.prctl(option, value, 0, 0, 0)

    def serve(self) -> tuple[dict[str, Any], int]:
        """Serve the agent to its end; in a child, return the request and the descriptor of the trial's line."""
        while True:
            ready, _, _ = select.select(self.watched, [], [])
            if self.woken in ready:
                self.woken.recv(4096)
                self.collect()
            if self.agent_process in ready:
                self.end()
            if self.agent in ready:
                request, descriptors = self.receive()
                if self.fork(request, descriptors):
                    return request, descriptors[2]

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """Receive a request and its descriptors; end where the agent has."""
        try:
            head, descriptors, _, _ = socket.recv_fds(self.agent, HEADER.size, NUM_DESCRIPTORS)
            text = self.agent.recv(HEADER.unpack(head)[0], socket.MSG_WAITALL)
            return json.loads(text), descriptors
        except (OSError, ValueError, struct.error):
            self.end()

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> bool:
        """Fork a child; return whether this is it."""
        out, err, line, report = descriptors
        request["cold"] = self.hindrance or why_cold(request)
        server = os.getpid()
        # Signals are ignored here, and the child takes them from `become` on: one that comes between waits till then.
        request["mask"] = signal.pthread_sigmask(signal.SIG_BLOCK, KEPT)
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
            os.write(report, json.dumps({"error": error.strerror}).encode() + b"\n")
            for descriptor in descriptors:
                os.close(descriptor)
            return False
        if pid == 0:
            signal.set_wakeup_fd(-1)
            self.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != server:
                os._exit(128 + signal.SIGTERM)
            for place, descriptor in enumerate((self.nothing, out, err)):
                os.dup2(descriptor, place)
            for end in (self.agent, self.woken, self.waker):
                end.close()
            others = [self.nothing, out, err, report, *self.reports.values()]
            for descriptor in others if self.agent_process is None else [*others, self.agent_process]:
                os.close(descriptor)
            return True
        signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # as the child does, whoever is first
        for descriptor in (out, err, line):
            os.close(descriptor)
        self.reports[pid] = report
        self.tell(pid, pid=pid, cold=request["cold"])
        return False

    def tell(self, child: int, **report: Any) -> None:
        with contextlib.suppress(OSError):  # a job that nobody waits for
            os.write(self.reports[child], json.dumps(report).encode() + b"\n")

    def collect(self) -> None:
        """Reap children that have ended, and kill whatever they left behind in their groups."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in self.reports:
                    send(ended.si_pid, signal.SIGKILL)  # while it is not reaped, no other group gets its number
                _, status = os.waitpid(ended.si_pid, 0)
                if ended.si_pid in self.reports:
                    self.tell(ended.si_pid, code=os.waitstatus_to_exitcode(status))
                    os.close(self.reports.pop(ended.si_pid))

    def end(self) -> NoReturn:
        """End the children, and this process."""
        for pid in self.reports:
            send(pid, signal.SIGTERM)
        until = time.monotonic() + END_BOUND_S
        while self.reports:
            if not select.select([self.woken], [], [], max(until - time.monotonic(), 0))[0]:
                for pid in self.reports:
                    send(pid, signal.SIGKILL)
                until += END_BOUND_S
            with contextlib.suppress(BlockingIOError):
                self.woken.recv(4096)
            self.collect()
        os._exit(0)


def send(group: int, number: int) -> None:
    """Send a signal to a group, if there is one."""
    with contextlib.suppress(OSError):
        os.killpg(group, number)


def why_cold(request: dict[str, Any]) -> str:
    """Return why a request needs a fresh Python; empty if it does not."""
    command, environment = request["command"], request["env"]
    if command[0] != sys.executable or program(command) is None:
        return "it is not a script or module for this Python"
    names = {name for name in (*environment, *STARTED_WITH) if name.startswith(READ_AT_START)} - SET_BY_PACKAGES
    for name in sorted(names):
        if environment.get(name) != STARTED_WITH.get(name):
            return f"{name} is {environment.get(name)!r}, and {STARTED_WITH.get(name)!r} in the warm process"
    taken = {name.partition(".")[0] for name in sys.modules} | {"sitecustomize", "usercustomize"}
    for folder in search_path(request):
        with contextlib.suppress(OSError):
            if hidden := taken.intersection(entry.name.partition(".")[0] for entry in Path(folder).iterdir()):
                return f"{folder} has a {min(hidden)} of its own"
    return ""


def program(command: list[str]) -> tuple[str, list[str], bool] | None:
    """Return `-m` or nothing, a module or script and its arguments, and whether `-P` was given; None otherwise."""
    words = command[1:]
    is_safe = words[:1] == ["-P"]
    if is_safe:
        del words[0]
    if words[:1] == ["-m"] and len(words) > 1:
        return "-m", words[1:], is_safe
    return ("", words, is_safe) if words and words[0].endswith(".py") else None


def search_path(request: dict[str, Any]) -> list[str]:
    """Return the folders that modules are searched in ahead of those of Python."""
    how, words, is_safe = program(request["command"]) or ("", [""], True)
    here = Path(request["cwd"])
    first = [] if is_safe else [str(here if how else (here / words[0]).resolve().parent)]
    folders = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
    return [*first, *dict.fromkeys(os.path.normpath(here / path) for path in folders)]


def become(request: dict[str, Any], ignored: Collection[int]) -> None:
    """Take on the process group, signals and folder that a fresh process gets from its parent."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in KEPT:
        # A script starts what stands before an `&` with SIGINT ignored; nohup means it.
        is_ignored = number in ignored and number != signal.SIGINT
        signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
    os.chdir(request["cwd"])


def run(request: dict[str, Any], line: int) -> NoReturn:
    """Become the program, and never return."""
    command, environment = request["command"], request["env"]
    os.set_inheritable(line, bool(request["cold"]))
    if request["variable"]:
        environment[request["variable"]] = json.dumps({"fd": line, **request["trial"]})
    if request["cold"]:
        try:
            os.execve(command[0], command, environment)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(127)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    open_streams()
    forget_what_was_looked_up(request["cwd"])
    gc.enable()
    how, words, _ = program(command) or ("", [], False)
    sys.argv[:], sys.orig_argv[:] = words, command
    sys.path[:0] = search_path(request)
    try:
        if how:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            run_script(words[0])
    except SystemExit as error:
        end(error.code)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        end(-signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
    end(0)


def run_script(name: str) -> None:
    """Run a script as `__main__`; `runpy.run_path` would change `sys.argv[0]` where that is a relative path."""
    path = str(Path.cwd() / name)
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: {reason}\n")
        sys.exit(2)
    main = types.ModuleType("__main__")
    main.__file__, main.__loader__ = path, importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__["__builtins__"], main.__dict__["__cached__"] = sys.modules["builtins"], None
    sys.modules["__main__"] = main
    exec(compile(text, path, "exec"), vars(main))


def open_streams() -> None:
    """Open stdin, stdout and stderr again, as Python does, because they lead elsewhere now."""
    for place, name in enumerate(("stdin", "stdout", "stderr")):
        old, mode = getattr(sys, name), "w" if place else "r"
        raw: Any = io.FileIO(place, mode, closefd=False)
        raw.name = f"<{name}>"
        if not (place and old.write_through):
            raw = io.BufferedWriter(raw) if place else io.BufferedReader(raw)
        is_line_buffered = not old.write_through and (place == 2 or os.isatty(place))
        stream = io.TextIOWrapper(
            raw, old.encoding, old.errors, line_buffering=is_line_buffered, write_through=old.write_through
        )
        stream.mode = mode  # type: ignore[misc]  # as Python names it
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def forget_what_was_looked_up(cwd: str) -> None:
    """Reset what packages derived from random numbers and from their surroundings when they were imported."""
    modules: dict[str, Any] = sys.modules
    if "numpy" in modules:
        modules["numpy"].random.seed()  # `random` does so by itself
    if "tempfile" in modules:
        modules["tempfile"].tempdir = None
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].ORIGINAL_DIR = cwd


def end(code: Any) -> NoReturn:
    """End as Python does, without tearing down its modules."""
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, and what else is to be done with them
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if code is not None and code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    main()
