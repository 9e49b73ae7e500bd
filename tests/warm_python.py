"""The warm process: a Python that has imported third-party packages and the lab, and forks a process for each request.

Started by `tests/processes.py`, which says what it offers. These are its processes:

    server      imports the packages, and the lab (`tests/warm_modules.py`), and forks a guardian whenever none waits;
                ends with the tests
    guardian    forks the process asked for, reports its exit code, and kills it and all that it left behind when
                its connection closes: when the tests are done with it, or are themselves killed; then it waits for the
                next one
    child       becomes the process asked for, and ends as any Python does: exit code, traceback, atexit, streams
    lab server  a server that the tests ask for, which imports a copy of the lab for what runs in that copy
    nursery     a server that a child forks before it becomes anything, for the Python that it will start itself: what
                the nursery forks is made a child of that child, with its own pid, as `subprocess` would have made it

A multiprocessing forkserver would do the first, but its children run functions instead of scripts, and outlive the
process that asked for them.
"""

from __future__ import annotations

import _imp
import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import hashlib
import importlib
import importlib.machinery
import importlib.util
import io
import json
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
import weakref
from pathlib import Path
from typing import Any

# All that an experiment, its observers and the commands import sooner or later.
PACKAGES = (
    *("torch", "torch._dynamo", "torch.utils.data", "torch.testing", "einops", "sklearn.datasets", "scipy.stats"),
    *("numpy", "pandas", "yaml", "tqdm", "rich.console", "rich.table", "argcomplete", "psutil", "pynvml", "cpuinfo"),
    *("sacred", "sacred.observers", "sacred.commandline_options", "pymongo", "gridfs", "PIL.Image", "plotille"),
    *("optuna", "optuna.storages.journal"),
)
LAB = {"exp", "sacristan"}
# Commands and modules that start experiments, or a Python that does.
STARTING = {
    "resume",
    "fork",
    "reproduce",
    "sweep",
    "work",
    "sweep.run",
    "sweep.agent",
    "sacristan.runs.sweeps.agents.agent_process",
}
SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
# Variables that a program reads when it starts, or a package when it is imported.
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "TZ", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "TORCH", "MPL")
# Those that packages set for themselves, when they are imported or later, and what is taken over by hand.
SET_BY_PACKAGES = {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR"}
STARTED_WITH = dict(os.environ)
# What torchrun tells the processes that it starts; and the number of threads, which torch is told later here.
OF_TORCHRUN = ("TORCHELASTIC_", "TORCH_NCCL_")
THREADS = "OMP_NUM_THREADS"
# Of Linux' prctl.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# Descriptors of one's own are beyond it.
HIGH = 200


def main() -> None:
    """Serve; go on in a child, which becomes the process asked for."""
    gc.disable()
    folder = Path(sys.path.pop(0))
    for name in PACKAGES:
        with contextlib.suppress(ModuleNotFoundError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)
    listener = socket.socket(fileno=int(sys.argv[1]))
    share_bytecode(Path(listener.getsockname()).parent)
    import_lab(folder, folder.parent)
    if loaded := LAB & sys.modules.keys():
        raise RuntimeError(f"the warm process has {loaded}, which every process has to import by itself")
    if threading.active_count() > 1 or len(list(Path("/proc/self/task").glob("*"))) > 1:
        raise RuntimeError("the warm process has threads, which a fork does not copy")
    gc.collect()
    gc.freeze()
    end_quickly()
    use_huge_pages()
    signal.signal(signal.SIGCHLD, lambda *_: wait_for_children())  # else their time would count nowhere
    run(serve(listener, int(sys.argv[2])))


def share_bytecode(folder: Path) -> None:
    """Compile a source once for all processes: they run copies of the lab, and restored ones, without its bytecode."""
    original = importlib.machinery.SourceFileLoader.source_to_code

    def source_to_code(self: Any, data: bytes, path: str, **options: Any) -> types.CodeType:
        place = folder / hashlib.sha256(data).hexdigest()
        with contextlib.suppress(OSError):
            code = marshal.loads(place.read_bytes())
            _imp._fix_co_filename(code, path)
            return code
        code = original(self, data, path, **options)
        with contextlib.suppress(OSError):
            written = place.with_name(f"{place.name}-{os.getpid()}")
            written.write_bytes(marshal.dumps(code))
            written.replace(place)
        return code

    importlib.machinery.SourceFileLoader.source_to_code = source_to_code


def import_lab(folder: Path, lab: Path) -> None:
    """Import the modules of a lab for processes that import them from there; `folder` is that of this file."""
    spec = importlib.util.spec_from_file_location("warm_modules", folder / "warm_modules.py")
    modules = importlib.util.module_from_spec(spec)  # which is not kept: a run would take it for one of its sources
    spec.loader.exec_module(modules)
    imported = modules.ImportedModules(lab)
    # What a run looks up once in a process: the packages that are installed, where modules lie, and the digits.
    imported["sacristan.observers.provenance.gathering"].packages()
    imported["sacristan.observers.provenance.sources"].Libraries(lab).look()
    imported["sacristan.ingredients.datasets.sources"].read_bundled("digits")


def end_quickly() -> None:
    """Spare each process what torch does when Python ends, which costs more than many a process does before."""
    import torch

    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False  # its operators are taken apart one by one
    with contextlib.suppress(AttributeError):
        atexit.unregister(torch._dynamo.utils.dump_compile_times)  # for its log


def use_huge_pages() -> None:
    """Gather this process's memory in pages of 2 MiB, where the system can: a fork then takes half the time."""
    size, collapse = 2**21, 25  # Linux' MADV_COLLAPSE
    with contextlib.suppress(AttributeError, OSError):
        advise = ctypes.CDLL(None).madvise
        for line in Path("/proc/self/maps").read_text().splitlines():
            places, rights, _, _, inode, *name = line.split()
            if rights == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
                begin, end = (int(place, 16) for place in places.split("-"))
                for place in range(-(-begin // size) * size, end - size + 1, size):
                    advise(ctypes.c_void_p(place), ctypes.c_size_t(size), collapse)  # or not


def can_be_warm(request: dict[str, Any]) -> bool:
    """Tell whether a Python script, module or text is asked for, with an environment as that of the warm process."""
    command, environment = without_option(request["command"]), request["env"]
    if (
        request["cold"]
        or command[0] != sys.executable
        or not (command[1] in ("-c", "-m") or command[1].endswith(".py"))
    ):
        return False
    names = {name for name in (*environment, *STARTED_WITH) if name.startswith(READ_AT_START)}
    names -= SET_BY_PACKAGES | {name for name in names if name.startswith(OF_TORCHRUN)}
    if environment.get(THREADS, "").isdecimal():
        names.discard(THREADS)
    return all(environment.get(name) == STARTED_WITH.get(name) for name in names)


def without_option(command: list[str]) -> list[str]:
    """Return a command of Python without the option `-u`, by which torchrun starts it."""
    return [word for place, word in enumerate(command) if (place, word) != (1, "-u")]


def serve(listener: socket.socket, lifetime: int) -> dict[str, Any]:
    """See to it that a guardian waits for the next connection, until the pipe `lifetime` is closed.

    Returns:
        The request, in a child.
    """
    listener.setblocking(False)
    changes, told = os.pipe()
    num_waiting = 0
    while True:
        if num_waiting == 0:
            if os.fork() == 0:
                os.close(changes)
                return guard(listener, lifetime, told)
            num_waiting = 1
        ready, _, _ = select.select([changes, lifetime], [], [])
        if lifetime in ready:
            end_server()
        num_waiting += sum(1 if change == ord("+") else -1 for change in os.read(changes, 4096))


def end_server() -> None:
    """Give the guardians that end with the server a moment, and take note of them: else their time counts nowhere."""
    until = time.monotonic() + 0.5
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.001)
    os._exit(0)


def guard(listener: socket.socket, lifetime: int, told: int) -> dict[str, Any]:
    """Take one connection after the other, and tell of it; return the request in the process asked for."""
    listener = out_of_the_way(listener)
    listener.setblocking(False)
    (lifetime, told), old = (move(lifetime), move(told)), (lifetime, told)
    for place in old:
        os.close(place)
    while True:
        ready, _, _ = select.select([listener, lifetime], [], [])
        if lifetime in ready:
            os._exit(0)
        try:
            client, _ = listener.accept()
        except BlockingIOError:  # another guardian has it
            continue
        client.setblocking(True)
        os.write(told, b"-")
        request = stand_by(client)
        if request is not None:
            listener.close()
            os.close(lifetime)
            os.close(told)
            return request
        os.write(told, b"+")


def wait_for_children() -> None:
    """Take note of the children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def stand_by(client: socket.socket) -> dict[str, Any] | None:
    """Fork the process asked for, and stand by it till the client has gone; return the request in that process."""
    _, descriptors, _, _ = socket.recv_fds(client, 1, 8)
    with client.makefile("rb") as stream:
        request = json.loads(stream.readline())
    client = out_of_the_way(client)
    if request["parent"] is not None:
        return hand_over(client, request, descriptors)
    adopt_orphans(True)
    wake_up, woken = socket.socketpair()
    for end in (wake_up, woken):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno())
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        for end in (wake_up, woken):
            end.close()
        become(request, descriptors)
        client.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
        client.close()
        return request
    for descriptor in descriptors:
        os.close(descriptor)
    watch(child, client, wake_up)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for end in (client, wake_up, woken):
        end.close()
    return None


def watch(child: int, client: socket.socket, wake_up: socket.socket) -> None:
    """Report the end of a process, and kill it and its descendants when the client has gone."""
    is_alone = False

    def collect() -> None:
        nonlocal is_alone
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:  # others too, that were adopted
                if found[0] == child:
                    report = json.dumps({"returncode": os.waitstatus_to_exitcode(found[1])})
                    with contextlib.suppress(OSError):
                        client.sendall(report.encode() + b"\n")
        except ChildProcessError:
            is_alone = True

    while True:
        ready, _, _ = select.select([client, wake_up], [], [])
        if wake_up in ready:
            wake_up.recv(4096)
            collect()
        if client in ready:
            break
    collect()
    while not is_alone:
        kill_descendants()
        collect()
        time.sleep(0.001)


def kill_descendants() -> None:
    """Kill all that descends from this process."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def out_of_the_way(client: socket.socket) -> socket.socket:
    """Return a connection under a number that no descriptor of a process asked for has."""
    with client:
        return socket.socket(fileno=move(client.fileno()))


def move(descriptor: int) -> int:
    """Return a descriptor's double under a number that no descriptor of a process asked for has."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH)


def hand_over(client: socket.socket, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
    """Fork a process that is the child of the one that asked for it, which adopts it; return the request there."""
    guardian = os.getpid()
    if os.fork():
        os._exit(0)
    while (parent := os.getppid()) == guardian:
        time.sleep(0.0001)
    if parent != request["parent"]:  # it has ended, or this server does not descend from it
        os._exit(1)
    become(request, descriptors)
    client.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
    client.close()
    return request


def adopt_orphans(wanted: bool) -> None:
    """Become the parent of all descendants whose own parent ends, where the system knows such a thing; or no more."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def keep_place(request: dict[str, Any]) -> dict[str, Any]:
    """Fork a process that runs a program until that is replaced by a Python (`os.execve`), which this one becomes.

    Returns:
        In the fork the request; in this process, which waits, keeps the pid and ends as the fork does, the next one.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        os.execve = functools.partial(give_place, theirs, os.execve)
        return {**request, "becomes_python": False}
    theirs.close()
    with ours, ours.makefile("rb") as stream:
        answer = stream.readline()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not answer:
        end(code)
    following = json.loads(answer)
    os.chdir(following["cwd"])
    return {**request, **following, "starts_python": False, "becomes_python": False}


def give_place(place: socket.socket, original: Any, path: str, words: list[str], environment: dict[str, str]) -> None:
    """Stand in for `os.execve`: let the process that keeps this one's place become a Python."""
    if path != sys.executable:
        original(path, words, environment)
    ignored = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    following = {
        "command": words,
        "cwd": str(Path.cwd()),
        "env": environment,
        "ignore": [number for number in ignored if number not in (signal.SIGPIPE, signal.SIGXFSZ)],
    }
    place.sendall(json.dumps(following).encode() + b"\n")
    os._exit(0)


def keep_nursery(request: dict[str, Any]) -> dict[str, Any]:
    """Fork a server for what `subprocess` starts in this process; return the request, and others in its children."""
    address = f"\0warm-{os.getpid()}"
    lifetime, ours = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        if os.fork():
            os.close(lifetime)
            subprocess._fork_exec = functools.partial(start_child, address, subprocess._fork_exec)
            subprocess._USE_POSIX_SPAWN = False  # by which Python 3.13 would start most children
            return {**request, "starts_python": False}
        os.close(ours)
        nothing = os.open(os.devnull, os.O_RDWR)
        for place in range(3):
            os.dup2(nothing, place)
        os.close(nothing)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        return serve(listener, lifetime)


def start_child(address: str, original: Any, *arguments: Any, starts_python: bool = False) -> int:
    """Stand in for `_posixsubprocess.fork_exec`: start Python as a child that a server forks; return its pid.

    Args:
        address: The server, which has to be a descendant of this process.
        original: The function, for all other children.
        arguments: Those of that function.
        starts_python: Whether the Python that the child starts is warm, too, whatever its command.
    """
    words, _, _, kept, cwd, env, stdin, _, _, stdout, _, stderr, _, error, _, session, group, *_, before, _ = arguments
    command = [os.fsdecode(word) for word in words]
    variables = os.environ if env is None else dict(os.fsdecode(entry).split("=", 1) for entry in env)
    # Of the lab's, where interrupts are ignored; anything else that is to be done in the child cannot be handed over.
    takes_interrupts = getattr(before, "__name__", "") == "_take_interrupts"
    if command[0] != sys.executable or not (before is None or takes_interrupts):
        return original(*arguments)
    passed = [descriptor for descriptor in kept if descriptor != error]
    ignored = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    if takes_interrupts and signal.SIGINT in ignored:
        ignored.remove(signal.SIGINT)
    request = {
        "command": command,
        "cwd": str(Path.cwd() / os.fsdecode(cwd or ".")),
        "env": dict(variables),
        "start_new_session": bool(session),
        "process_group": group if group >= 0 else None,
        "ignore": [number for number in ignored if number not in (signal.SIGPIPE, signal.SIGXFSZ)],
        "descriptors": passed,
        "cold": False,
        "starts_python": starts_python or starts_others(command),
        "becomes_python": False,
        "parent": os.getpid(),
    }
    adopt_orphans(True)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(address)
            streams = [place if given == -1 else given for place, given in enumerate((stdin, stdout, stderr))]
            socket.send_fds(server, [b"+"], [*streams, *passed])
            server.sendall(json.dumps(request).encode() + b"\n")
            with server.makefile("rb") as answers:
                return json.loads(answers.readline())["pid"]
    finally:
        adopt_orphans(False)


def starts_others(command: list[str]) -> bool:
    """Return whether a command starts other Pythons, which are to be warm as well."""
    return not STARTING.isdisjoint(command)


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Take on what a process gets from the one that starts it."""
    if request["start_new_session"]:
        os.setsid()
    elif request["process_group"] is not None:
        os.setpgid(0, request["process_group"])
    for number in SIGNALS:
        with contextlib.suppress(OSError):  # the C library keeps some
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    given = [move(descriptor) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for place, descriptor in zip((0, 1, 2, *request["descriptors"]), given, strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(request["cwd"])


def serve_lab(folder: Path) -> dict[str, Any]:
    """Import a copy of the lab in place of this one, and serve by the socket 3; return the request in a child."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ImportedModules"]
    import_lab(Path(__file__).parent, folder)
    gc.freeze()
    signal.signal(signal.SIGCHLD, lambda *_: wait_for_children())
    lifetime = os.dup(0)
    with socket.socket(fileno=3) as listener:
        return serve(listener, lifetime)


def run(request: dict[str, Any]) -> None:
    """Run a program: a fresh one, or a script or module in this process."""
    while "lab" in request or ((request["becomes_python"] or request["starts_python"]) and can_be_warm(request)):
        # Each returns the next request in what it has forked.
        if "lab" in request:
            request = serve_lab(Path(request["lab"]))
        elif request["becomes_python"]:
            request = keep_place(request)
        else:
            request = keep_nursery(request)
    command, environment = request["command"], request["env"]
    if can_be_warm(request):
        command = without_option(command)
    else:
        for number in request["ignore"]:
            signal.signal(number, signal.SIG_IGN)
        try:
            os.execvpe(command[0], command, environment)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(127)
    os.environ.clear()
    os.environ.update(environment)
    if environment.get(THREADS) != STARTED_WITH.get(THREADS) and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(environment[THREADS]))
    # As Python does at its start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    for number in request["ignore"]:
        signal.signal(number, signal.SIG_IGN)
    open_streams()
    forget_random_state()
    gc.enable()
    here = Path.cwd()
    kind, place = (command[1], 2) if command[1] in ("-c", "-m") else ("", 1)
    name, sys.argv[:] = command[place], ["-c", *command[3:]] if kind == "-c" else command[place:]
    sys.orig_argv[:] = command
    first = {"": str(Path(name).resolve().parent), "-m": str(here), "-c": ""}[kind]
    paths = [str(here / path) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [first, *dict.fromkeys(paths), *sys.path]
    try:
        if kind == "-m":
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            run_main(name if kind else (here / name).read_bytes(), None if kind else str(here / name))
    except SystemExit as error:
        end(error.code)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        end(-signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
    end(0)


def run_main(text: str | bytes, path: str | None) -> None:
    """Run a program as `__main__`; `runpy.run_path` would change `sys.argv[0]` where that is a relative path."""
    main = types.ModuleType("__main__")
    if path is not None:
        main.__file__, main.__loader__ = path, importlib.machinery.SourceFileLoader("__main__", path)
    sys.modules["__main__"] = main
    exec(compile(text, path or "<string>", "exec"), vars(main))


def open_streams() -> None:
    """Open stdin, stdout and stderr anew, as Python does: what they lead to is something else now."""
    for place, name in enumerate(("stdin", "stdout", "stderr")):
        old, mode = getattr(sys, name), "w" if place else "r"
        raw = io.FileIO(place, mode, closefd=False)
        raw.name = f"<{name}>"
        if not (place and old.write_through):
            raw = io.BufferedWriter(raw) if place else io.BufferedReader(raw)
        stream = io.TextIOWrapper(
            raw,
            old.encoding,
            old.errors,
            line_buffering=not old.write_through and (place == 2 or os.isatty(place)),
            write_through=old.write_through,
        )
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def forget_random_state() -> None:
    """Give the global random stream of numpy another state, which every process begins with; Python does by itself."""
    import numpy as np

    np.random.seed()


def end(code: Any) -> None:
    """End as Python does, but for taking its modules apart, which costs more than many a test."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code is not None and code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    main()
