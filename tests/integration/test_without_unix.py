"""The lab where there is nothing of what Windows, or macOS, lacks: it is imported, trains, records and is read.

What is taken away is taken away in one process, after the packages of others were imported, which have their own ways.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from sacristan.observers.record import append_file
from sacristan.observers.record.files import BINARY
from tests.processes import run

LAB = Path(__file__).parents[2]

SCRIPT = """
import errno, os, pathlib, pkgutil, importlib, runpy, signal, sys
import mcp, numpy, pandas, psutil, pymongo, rich.console, sacred, sklearn.datasets, torch, tqdm

for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios"):
    sys.modules[name] = None
for name in (
    "fork", "forkpty", "getloadavg", "geteuid", "getuid", "killpg", "mkfifo", "posix_fallocate", "pread", "preadv",
    "pwrite", "pwritev", "register_at_fork", "sched_getaffinity", "setsid", "statvfs", "sysconf", "uname",
    "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK",
):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    delattr(signal, name)

def without_proc(method):
    def call(path, *args, **kwargs):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, "there is no /proc", str(path))
        return method(path, *args, **kwargs)
    return call

for name in ("exists", "is_dir", "iterdir", "open", "read_bytes", "read_text", "readlink", "stat"):
    setattr(pathlib.Path, name, without_proc(getattr(pathlib.Path, name)))

lab = sys.argv[1]
sys.path.insert(0, lab)
# Those that the tests' warm process has are made for a system that has all of it.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ImportedModules"]
for package in ("configs", "observers", "ingredients", "experiments", "runs"):
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, package + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

def start(*words):
    sys.argv = list(words)
    try:
        if words[0].endswith(".py"):
            runpy.run_path(words[0], run_name="__main__")
        else:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, end.code

start(os.path.join(lab, "exp.py"), "with", "data.fast", "epochs=1", "checkpoint.interval_steps=3")
print("== ls", flush=True)
start("runs", "ls")
print("== show", flush=True)
start("runs", "show", "1")
"""


@pytest.mark.slow
def test_main_job_runs_and_is_read_without_what_other_systems_lack(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run(
        [sys.executable, "script.py", str(LAB)], cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "my_runs" / "1" / "run.json").read_text())
    assert record["status"] == "COMPLETED"
    assert "Traceback" not in done.stderr
    shown = done.stdout.partition("== ls")[2].partition("== show")
    assert "COMPLETED" in shown[0]
    assert "test.accuracy" in shown[2] or "val/loss" in shown[2]
    assert (tmp_path / "my_runs" / "1" / "checkpoints" / "best.pt").exists()


@pytest.fixture(params=["the system's", "the lab's"])
def calls(request):
    """Return what reads and what writes at a place: the system's, and what stands in for it."""
    own = append_file._pread, append_file._pwrite
    return own if request.param == "the lab's" else (append_file.pread, append_file.pwrite)


def test_positional_reading_and_writing_leave_the_position(calls, tmp_path):
    pread, pwrite = calls
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | BINARY)
    try:
        assert os.write(descriptor, b"0123456789") == 10
        os.lseek(descriptor, 4, os.SEEK_SET)
        assert pwrite(descriptor, memoryview(b"ab"), 8) == 2
        assert pwrite(descriptor, b"cd", 12) == 2
        assert pread(descriptor, 99, 7) == b"7ab\0\0cd"
        assert pread(descriptor, 3, 99) == b""
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 4
    finally:
        os.close(descriptor)


def test_positional_writing_that_fails_lets_go_of_the_data(calls, tmp_path):
    buffer = bytearray(b"0123456789")
    (tmp_path / "file").touch()
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        calls[1](descriptor, memoryview(buffer)[3:], 0)
    except OSError:
        # As a full disk has it: what was written is cut off, while the error is looked at.
        del buffer[:3]
    finally:
        os.close(descriptor)
    assert buffer == b"3456789"
