"""`sacristan run -- COMMAND`: any command, whose first Python script records itself; else the command is recorded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from sacristan.experiments.scripts import in_children
from sacristan.experiments.scripts.capturing import told
from sacristan.experiments.scripts.script_run import is_disabled, make_main
from sacristan.experiments.scripts.session import Session

# Programs that may start a Python script, beside Python's own.
_SHELLS = (
    "bash",
    "sh",
    "zsh",
    "dash",
    "env",
    "make",
    "just",
    "srun",
    "mpirun",
    "mpiexec",
    "time",
    "nice",
    "uv",
    "xargs",
)
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # as shells have them


def run_command(words: Sequence[str], options: Sequence[str], name: str | None) -> NoReturn:
    """Run a command, and exit as it does, by signal, too; `options` of `sacristan run` are for its script."""
    path = shutil.which(words[0])
    if path is None:
        told(f"error: {words[0]}: there is no such program")
        sys.exit(_NOT_FOUND)
    try:
        if is_disabled():
            _exit_as(_wait(_start(words)))
        if not _may_start_python(path):
            _run_recorded(words, name or Path(words[0]).name)
        with tempfile.TemporaryDirectory(prefix="sacristan-") as folder:
            code = _run_with_hook(words, options, Path(folder))
            if not any(Path(folder, name).exists() for name in (in_children.CLAIM, in_children.LATER_RANK)):
                book = next((word for word in words if word.endswith(".ipynb") and Path(word).exists()), None)
                hint = "" if book is None else f"; for a notebook, write sacristan run -m IPython {book}"
                told(f"nothing was recorded: the command started no Python script{hint}")
    except OSError as error:
        told(f"error: {words[0]}: {error.strerror}")
        sys.exit(_NOT_EXECUTABLE)
    _exit_as(code)


def _may_start_python(path: str) -> bool:
    name = Path(path).name
    if name.startswith("python") or name in _SHELLS:
        return True
    with open(path, "rb") as stream:  # noqa: PTH123
        head = stream.readline(200)
    return head.startswith(b"#!") and any(word in head for word in (b"python", b"sh"))


def _run_recorded(words: Sequence[str], name: str) -> NoReturn:
    """Run a command that starts no Python, and record its output and its end."""
    script = {"kind": "command", "program": words[0], "args": [*words[1:]], "captured": True}
    make_main()  # no source of the lab is one of the run
    session = Session.begin(name, {"args": [*words[1:]]}, script=script)
    code = _wait(_start(words))
    session.end(SystemExit(code) if code else None)
    _exit_as(code)


def _run_with_hook(words: Sequence[str], options: Sequence[str], folder: Path) -> int:
    shutil.copyfile(str(in_children.__file__), folder / "sitecustomize.py")
    before = os.environ.get("PYTHONPATH")
    told_children = {"options": [*options], "folder": str(folder), "path": before}
    path = str(folder) if not before else f"{folder}{os.pathsep}{before}"
    environment = {**os.environ, in_children.VARIABLE: json.dumps(told_children), "PYTHONPATH": path}
    return _wait(_start(words, environment))


def _start(words: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a command such that Ctrl-Z stops both processes; by vfork, a stopped child would block this one."""
    return subprocess.Popen(words, env=environment, preexec_fn=_do_nothing)


def _do_nothing() -> None:
    pass


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a command, and pass on what would end this process; Ctrl-C reaches both anyway."""

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, pass_on)
    signal.signal(signal.SIGINT, lambda *_: None)
    return process.wait()


def _exit_as(code: int) -> NoReturn:
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
