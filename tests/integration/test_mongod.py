"""A MongoDB server of one's own: it is there for the program that starts it, and no longer."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.processes import PIPE, Process

ROOT = Path(__file__).parents[2]
HELD = """
import sys
from sacristan.runs.work.mongod import Mongod
with Mongod(sys.argv[1]) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""
FORMS = {"in-python": ["-c", HELD, "data"], "command": ["-m", "sacristan", "mongod", "--folder", "data", "--port", "0"]}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("end", ["SIGKILL", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_server_ends_with_its_program(tmp_path, wait_for, form, end):
    command, env = [sys.executable, *FORMS[form]], {**os.environ, "PYTHONPATH": str(ROOT)}
    with Process(command, cwd=tmp_path, env=env, stdin=PIPE, stdout=PIPE, text=True, cold=True) as process:
        assert process.stdout.readline().startswith("mongodb://127.0.0.1:")
        pid = int((tmp_path / "data" / "mongod.lock").read_text())
        assert psutil.Process(pid).name() == "mongod"
        process.send_signal(signal.Signals[end])
        process.wait(60)
        wait_for(lambda: not psutil.pid_exists(pid), "the end of the server")
    # It has ended in order, and so left no lock behind.
    assert (tmp_path / "data" / "mongod.lock").read_text() == ""
