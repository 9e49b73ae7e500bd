"""Experiments that tests start as processes, to be killed and cut off for real."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HEAD = """
import os, sys, time
sys.path.insert(0, {root!r})
from experiments import Experiment
from observers import FileObserver, MongoObserver
ex = Experiment("recorded")
"""


class Recorded:
    """A process that runs an experiment; its output goes to files in its folder."""

    def __init__(self, root: Path, folder: Path, body: str, arguments: tuple[str, ...]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        script = folder / "recorded.py"
        if not script.exists():  # another process may be reading it
            script.write_text(HEAD.format(root=str(root)) + body)
        self.out, self.err = folder / "stdout.txt", folder / "stderr.txt"
        with self.out.open("w") as out, self.err.open("w") as err:
            command = [sys.executable, str(script), *arguments]
            self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def finish(self, timeout_s: float = 120.0) -> str:
        """Wait for a good end, and return what it wrote to stderr."""
        code = self.process.wait(timeout_s)
        text = self.err.read_text()
        assert code == 0, text
        return text


@pytest.fixture
def start(request) -> Iterator[Callable[..., Recorded]]:
    """Start a script that runs an experiment: `start(folder, body, *arguments)`; killed when the test ends."""
    started: list[Recorded] = []

    def begin(folder: Path, body: str, *arguments: str) -> Recorded:
        started.append(Recorded(request.config.rootpath, folder, body, arguments))
        return started[-1]

    yield begin
    for recorded in started:
        recorded.process.kill()
        recorded.process.wait()


@pytest.fixture
def wait_for() -> Callable[..., object]:
    """Wait until a condition holds, and return what it gave: `wait_for(condition, what)`."""

    def wait(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> object:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {what}"
            time.sleep(0.02)
        return value

    return wait
