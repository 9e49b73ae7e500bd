"""Printed and logged lines in the order in which they come, whole, in the record and where they are shown."""

from __future__ import annotations

import os
import pty
import sys
import threading

import pytest

from runs.stores.opening import open_store
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
