"""A script under `sacristan run` on a terminal: it sees a terminal, and Ctrl-C, Ctrl-Z and new sizes arrive as ever."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import termios

import psutil
import pytest

from sacristan.runs import open_store
from tests.processes import PIPE, Process, run

# A shell of a terminal: continues its only job whenever that stops, and ends as it does.
SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
while True:
    status = os.waitpid(job, os.WUNTRACED)[1]
    if not os.WIFSTOPPED(status):
        break
    os.write(1, b"[stopped]")
    os.killpg(job, signal.SIGCONT)
code = os.waitstatus_to_exitcode(status)
sys.exit(code if code >= 0 else 128 - code)
"""
WAYS = {"python": [], "sacristan run": ["-m", "sacristan", "run"]}


class Terminal:
    """A terminal of 33 lines and 77 columns, with a script that runs there.

    Attributes:
        shown: What the terminal has shown so far.
    """

    def __init__(self, folder, way, code):
        (folder / "train.py").write_text(code)
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (33, 77))
        self.shown, self._folder = "", folder
        words = [sys.executable, "-c", SHELL, *WAYS[way], "train.py"]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        self._process = Process(words, cwd=folder, start_new_session=True, cold=True, **streams)
        os.close(theirs)

    def read_until(self, text):
        while text not in self.shown and self._read():
            pass
        assert text in self.shown

    def _read(self):
        try:
            part = os.read(self._ours, 65536).decode()
        except OSError:  # nobody has it open any more
            part = ""
        self.shown += part
        return part

    def press(self, key):
        os.write(self._ours, key)

    def resize(self, lines, columns):
        termios.tcsetwinsize(self._ours, (lines, columns))

    def end(self):
        """Return the exit code as a shell has it, and what was shown, without our lines and the folder."""
        while self._read():
            pass
        os.close(self._ours)
        shown = re.sub(r"sacristan: .*\r\n", "", self.shown).replace(str(self._folder), "HERE")
        return self._process.wait(60), shown


def both(tmp_path, code, act=lambda terminal: None):
    """Return what a script under Python, and under `sacristan run`, exits with and shows; and the recorded run."""
    ends = []
    for way in WAYS:
        folder = tmp_path / way
        folder.mkdir()
        terminal = Terminal(folder, way, code)
        act(terminal)
        ends.append(terminal.end())
    with open_store(tmp_path / "sacristan run" / "my_runs") as store:
        [found] = store.find()
        return *ends, found


SEES = """
import os, subprocess, sys
print([os.isatty(number) for number in range(3)], os.get_terminal_size(), os.get_terminal_size(2))
subprocess.run([sys.executable, "-c", "import os; print(os.isatty(1), os.get_terminal_size())"])
print("in colour" if sys.stdout.isatty() else "plain", end="\\r", flush=True)
print("to stderr", file=sys.stderr)
name = input("name? ")
print("hello", name)
"""


def test_script_sees_a_terminal_and_its_output_is_recorded_as_it_prints_it(tmp_path):
    def act(terminal):
        terminal.read_until("name? ")
        terminal.press(b"ann\n")

    plain, under, found = both(tmp_path, SEES, act)
    assert under == plain
    assert plain[0] == 0
    assert "[True, True, True] os.terminal_size(columns=77, lines=33)" in plain[1]
    assert "in colour\rto stderr\nname? hello ann\n" in found.output
    assert "\r\n" not in found.output


def test_only_streams_that_are_terminals_are_seen_as_some(tmp_path):
    (tmp_path / "train.py").write_text("import os, sys; print(os.isatty(1), os.isatty(2)); print('x', file=sys.stderr)")
    ours, theirs = os.openpty()
    try:
        command = [sys.executable, *WAYS["sacristan run"], "train.py"]
        done = run(command, cwd=tmp_path, stdout=PIPE, stderr=theirs, text=True)
    finally:
        os.close(theirs)
        os.close(ours)
    assert (done.returncode, done.stdout) == (0, "False True\n")


RESIZED = """
import os, signal, sys
resized = []
if {has_handler}:
    signal.signal(signal.SIGWINCH, lambda *_: resized.append(os.get_terminal_size()))
print("ready", signal.getsignal(signal.SIGWINCH) == signal.SIG_DFL, flush=True)
while os.get_terminal_size().columns == 77 or len(resized) < {has_handler}:
    pass
print(os.get_terminal_size(), resized)
"""


@pytest.mark.parametrize("has_handler", [0, 1])
def test_new_size_reaches_the_script(tmp_path, has_handler):
    def act(terminal):
        terminal.read_until("ready")
        terminal.resize(44, 100)

    plain, under, _ = both(tmp_path, RESIZED.format(has_handler=has_handler), act)
    assert under == plain
    assert plain[0] == 0
    assert plain[1].count("columns=100, lines=44") == 1 + has_handler


KEYS = """
import sys, time
sys.tracebacklimit = 0  # Ctrl-C may come in any line
try:
    print("ready", flush=True)
    for _ in range({tenths}): time.sleep(0.1)
finally:
    print("end", flush=True)
"""


@pytest.mark.parametrize(("key", "tenths", "code"), [(b"\x03", 600, 128 + signal.SIGINT), (b"\x1a", 3, 0)])
def test_ctrl_c_and_ctrl_z_arrive_as_ever(tmp_path, key, tenths, code):
    def act(terminal):
        terminal.read_until("ready\r\n")
        terminal.press(key)

    plain, under, found = both(tmp_path, KEYS.format(tenths=tenths), act)
    assert under == plain
    assert plain[0] == code
    assert ("[stopped]" in plain[1]) == (key == b"\x1a")
    assert found.status == ("INTERRUPTED" if code else "COMPLETED")


GIT = f"""#!/bin/sh
echo "$(grep SigBlk /proc/self/status)" "$0" "$@" >> "$BLOCKED_SIGNALS"
PATH={os.environ["PATH"]} exec "$(basename "$0")" "$@"
"""


def test_programs_that_the_record_starts_are_not_stopped_before_they_run(tmp_path, monkeypatch):
    # Whether Ctrl-Z meets one is a matter of chance; then the process could not stop, and the shell hung.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(GIT)
    (tmp_path / "bin" / "git").chmod(0o755)
    (tmp_path / "bin" / "tee").symlink_to("git")
    blocked = tmp_path / "blocked"
    monkeypatch.setenv("BLOCKED_SIGNALS", str(blocked))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    run(["git", "init", "-q"], cwd=tmp_path)
    blocked.unlink()
    (tmp_path / "train.py").write_text("import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))")
    done = run([sys.executable, *WAYS["sacristan run"], "train.py"], cwd=tmp_path, stdout=PIPE, text=True, cold=True)
    assert done.stdout == "set()\n"
    masks = [int(line.split()[1], 16) for line in blocked.read_text().splitlines()]
    assert masks
    assert all(mask >> (signal.SIGTSTP - 1) & 1 for mask in masks), blocked.read_text()


STOPPED_AT_ITS_START = """
import os, signal, sys
from sacristan.__main__ import main

os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGSTOP))
sys.argv[1:] = ["run", "--", "sh", "-c", "grep SigBlk /proc/self/status"]
main()
"""


def test_command_that_is_stopped_before_it_runs_lets_its_recorder_stop(tmp_path, wait_for):
    words = [sys.executable, "-c", STOPPED_AT_ITS_START]
    with Process(words, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, cold=True) as process:
        recorder = psutil.Process(process.pid)
        wait_for(lambda: [child.status() for child in recorder.children()] == ["stopped"], "a stopped command")
        [command] = recorder.children()
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: recorder.status() == "stopped", "a stopped recorder")
        recorder.resume()
        command.resume()
        out, err = process.communicate()
        assert (process.returncode, out) == (0, "SigBlk:\t0000000000000000\n"), err


LEAVES = """
import subprocess
other = subprocess.Popen(["sleep", "600"])
print("left", other.pid, flush=True)
"""


def test_process_that_the_script_leaves_on_the_terminal_does_not_keep_it(tmp_path):
    terminal = Terminal(tmp_path, "sacristan run", LEAVES)
    terminal.read_until("Recorded in my_runs/1")
    left = int(re.search(r"left (\d+)", terminal.shown)[1])
    with contextlib.suppress(ProcessLookupError):
        os.kill(left, signal.SIGKILL)
    assert terminal.end()[0] == 0
    assert "is still held by sleep" in terminal.shown
