"""Printed and logged lines in the order in which they come, whole, in the record and where they are shown."""

from __future__ import annotations

import os
import pty
import sys
import threading

import pytest

from sacristan.runs import open_store
from tests.integration.conftest import HEAD, TEE
from tests.processes import Process

BODY = """
import logging
ex.observers.append(FileObserver("runs"))

@ex.automain
def main(_log):
    for number in range(1000):
        print(f"{number} printed")
        _log.warning("%d logged", number)
        if number % 100 == 0:
            os.system(f"echo {number} of a child; echo {number} of a child 1>&2")
"""
REPLACED = f"{TEE}\nsys.stdout = Tee(sys.stdout)\n"
LINES = [
    line
    for number in range(1000)
    for line in (f"{number} printed", f"{number} logged", *[f"{number} of a child"] * (2 * (number % 100 == 0)))
]


def lines_of(text):
    """Return the lines of `BODY` in a text, without what the log puts ahead of them."""
    lines = [line.removeprefix("WARNING - recorded - ").removeprefix("WARNING - main - ") for line in text.splitlines()]
    return [line for line in lines if line[:1].isdigit()]


@pytest.mark.parametrize(
    "where",
    ["terminal", *(pytest.param(where, marks=pytest.mark.slow) for where in ("pipe", "pipe of a replaced stream"))],
)
def test_lines_keep_their_order(tmp_path, request, where):
    (tmp_path / "recorded.py").write_text(
        HEAD.format(root=str(request.config.rootpath)) + REPLACED * ("replaced" in where) + BODY
    )
    ours, theirs = pty.openpty() if where == "terminal" else os.pipe()
    read: list[bytes] = []

    def follow():
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # a terminal that nobody has open any more
                return
            if not part:
                return
            read.append(part)

    following = threading.Thread(target=follow)
    following.start()
    environ = {**os.environ, "PYTHONUNBUFFERED": ""}  # else there is nothing to keep back
    process = Process([sys.executable, "recorded.py"], cwd=tmp_path, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    assert process.wait(60) == 0
    following.join(60)
    os.close(ours)
    shown = lines_of(b"".join(read).decode().replace("\r\n", "\n"))
    with open_store(tmp_path / "runs") as store:
        recorded = lines_of(store.get("1").output)
    assert recorded == LINES
    assert shown == LINES


CLOSING = """
from pathlib import Path

ex.observers.append(FileObserver("runs"))

@ex.automain
def main(_run):
    {early}
    for step in range(100):
        _run.log_scalar("loss", step, step)
    os.write(2, b"first line\\n")
    while not (Path("runs/1/metrics.sums").exists() and Path("runs/1/cout.txt").exists()):
        time.sleep(0.01)
    # A file that another thread writes at this moment cannot be told from one that is opened next.
    while time.time() - max(path.stat().st_mtime for path in Path("runs/1").glob("*")) < 0.2:
        time.sleep(0.01)
    {late}
    ex.others = [open("other%d" % number, "w+") for number in range(30)]
    for step in range(100, 200):
        _run.log_scalar("loss", step, step)
        _run.log_scalar("late", step, step)
    os.write(2, b"last line\\n")
"""


@pytest.mark.parametrize(("early", "late"), [("os.close(1)", ""), ("", "os.closerange(3, 256)")])
def test_descriptors_that_user_code_closes_cost_no_point_and_no_other_file(start, tmp_path, early, late):
    run = start(tmp_path, CLOSING.format(early=early, late=late))
    shown = run.finish()
    assert "deleted" not in shown
    with open_store(tmp_path / "runs") as store:
        [found] = store.find()
        assert found.status == "COMPLETED"
        assert found.metric("loss").values.tolist() == list(range(200))
        assert found.metric("late").values.tolist() == list(range(100, 200))
        lines = found.read_output()[0].splitlines()
        assert lines.count(b"first line") == lines.count(b"last line") == 1
    assert {path.stat().st_size for path in tmp_path.glob("other*")} == {0}


HELPED = """
import multiprocessing, pathlib, subprocess

ex.observers.append(FileObserver("runs"))

def work(number):
    os.write(1, b"from %d\\n" % number)

@ex.main
def main(how):
    if how == "wandb":
        ex.helper = subprocess.Popen([sys.executable, "wandb-core", str(os.getpid())])
    elif how == "server":
        ex.helper = subprocess.Popen(["sleep", "30"])
    else:
        with multiprocessing.get_context(how).Pool(2) as pool:
            pool.map(work, range(4))
    print("last " + "x" * 100_000, flush=True)

if __name__ == "__main__":
    ex.add_config(how="spawn")
    ex.run_commandline()
    if hasattr(ex, "helper"):
        ex.helper.kill()
"""


@pytest.mark.parametrize(
    "how", ["spawn", "wandb", *(pytest.param(how, marks=pytest.mark.slow) for how in ("forkserver", "server"))]
)
def test_helper_processes_of_libraries_are_neither_waited_for_nor_reported(start, tmp_path, how):
    (tmp_path / "wandb-core").write_text("import time\ntime.sleep(60)\n")
    run = start(tmp_path, HELPED, "with", f"how={how}")
    shown = run.finish()
    assert ("still held by sleep (process" in shown) == ("WARNING" in shown) == (how == "server"), shown
    with open_store(tmp_path / "runs") as store:
        output = store.get(1).read_output()[0].decode()
    assert output.count("x") >= 100_000  # the log, which another process copies, may come in between
    lines = sorted(line for line in output.splitlines() if line.startswith("from"))
    assert lines == [f"from {number}" for number in range(4)] * (how in ("spawn", "forkserver"))
