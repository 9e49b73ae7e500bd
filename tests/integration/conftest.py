"""Experiments that tests start as processes, to be killed and cut off for real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest

from sacristan.runs import Store, open_store, reap
from tests.processes import DEVNULL, Process

HEAD = """
import os, sys, time
sys.path.insert(0, {root!r})
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
ex = Experiment("recorded")
"""


# At its end a run waits for a database that does not answer half a second, in place of ten.
IMPATIENT = """
import sacristan.observers.mongo.observer
sacristan.observers.mongo.observer.DRAIN_BOUND_S = 0.5
"""


class Recorded:
    """A process that runs an experiment; its output goes to files in its folder."""

    def __init__(
        self,
        root: Path,
        folder: Path,
        body: str,
        arguments: tuple[str, ...],
        cold: bool = False,
        impatient: bool = False,
        env: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        script = folder / "recorded.py"
        if not script.exists():  # another process may be reading it
            script.write_text(HEAD.format(root=str(root)) + IMPATIENT * impatient + body)
        self.out, self.err = folder / "stdout.txt", folder / "stderr.txt"
        with self.out.open("w") as out, self.err.open("w") as err:
            command = [sys.executable, str(script), *arguments]
            self.process = Process(command, cwd=folder, stdin=DEVNULL, stdout=out, stderr=err, cold=cold, env=env)

    def finish(self, timeout_s: float = 120.0) -> str:
        """Wait for a good end, and return what it wrote to stderr."""
        code = self.process.wait(timeout_s)
        text = self.err.read_text()
        assert code == 0, text
        return text


def _starting(root: Path) -> Iterator[Callable[..., Recorded]]:
    started: list[Recorded] = []

    def begin(folder: Path, body: str, *arguments: str, **options: Any) -> Recorded:
        started.append(Recorded(root, folder, body, arguments, **options))
        return started[-1]

    yield begin
    for recorded in started:
        recorded.process.close()


@pytest.fixture
def start(request) -> Iterator[Callable[..., Recorded]]:
    """Start a script that runs an experiment: `start(folder, body, *arguments)`; killed when the test ends.

    With `impatient=True` it waits at its end half a second for a database that does not answer.
    """
    yield from _starting(request.config.rootpath)


@pytest.fixture(scope="module")
def start_for_module(request) -> Iterator[Callable[..., Recorded]]:
    """Do as `start` does; killed when the module's tests end."""
    yield from _starting(request.config.rootpath)


def _wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> object:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {what}"
        time.sleep(0.02)
    return value


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., object]:
    """Wait until a condition holds, and return what it gave: `wait_for(condition, what)`."""
    return _wait_for


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    """An empty store in the folder `store`."""
    with open_store(tmp_path / "store", create=True) as opened:
        yield opened


TEE = """
class Tee:
    "As people write it: it passes on to the stream that was there."

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        return self.stream.write(text)

    def flush(self):
        self.stream.flush()
"""

CLOCK = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long offset_s;

void set_clock(long seconds) { offset_s += seconds; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += offset_s;
    return result;
}
"""


@pytest.fixture
def settable_clock(tmp_path) -> dict[str, str]:
    """The environment of a process (`cold=True`) whose wall clock alone `CDLL(os.environ["LD_PRELOAD"])` sets."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("a clock of its own needs Linux and a C compiler")
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A disk of 6 MiB of its own, in the folder `disk`; skips a test that may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("a disk of its own can be mounted by root only")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


LAB = """
import pathlib
ex.observers.extend([FileObserver("runs"), MongoObserver(URL, db_name=NAME)])
ex.add_config({"lr": 0.1, "how": "well", "tags": ["first", "second"], "data": {"batch_size": 8, "name": "digits"}})

@ex.automain
def main(_run, how, lr):
    print("begin")
    _run.log_scalar("val.acc", lr, 0)
    if how == "well":
        for step in range(25_000):
            _run.log_scalar("train/loss", 1 / (step + 1), step)
        for number in range(3_000):
            print(f"line {number}: " + "x" * 100)
        pathlib.Path("large.bin").write_bytes(bytes(range(256)) * 3_000)
        pathlib.Path("table.csv").write_text("a,b\\n1,2\\n")
        _run.add_artifact("large.bin")
        _run.add_artifact("table.csv", name="results/table.csv", metadata={"rows": 1})
        _run.add_resource("table.csv")
        _run.info["note"] = {"long": "y" * 1_000_000, "short": "here"}
    elif how == "badly":
        raise ValueError("it went badly")
    else:
        while True: time.sleep(0.1)
    return {"accuracy": 0.5}
"""


class Lab:
    """A database that holds a run of every kind.

    Attributes:
        url, database: Where it is.
        folder: Where the same runs are on disk, below `runs`.
        runs: The `_id` by kind: completed, again (the same once more), failed, queued, running, dead.
    """

    def __init__(self, url: str, database: pymongo.database.Database, folder: Path) -> None:
        self.url, self.database, self.folder = url, database, folder
        self.runs: dict[str, int] = {}


@pytest.fixture(scope="module")
def lab(mongo_url, tmp_path_factory, start_for_module) -> Iterator[Lab]:
    """A database with a run of every kind, as readers made for Sacred meet it."""
    folder = tmp_path_factory.mktemp("lab")
    with pymongo.MongoClient(mongo_url) as client:
        lab = Lab(mongo_url, client[f"lab_{uuid.uuid4().hex}"], folder)
        body = LAB.replace("URL", repr(mongo_url)).replace("NAME", repr(lab.database.name))

        def add(kind: str, *arguments: str) -> Recorded:
            lab.runs[kind] = len(lab.runs) + 1
            return start_for_module(folder, body, *arguments)

        def in_database(kind: str) -> bool:
            return bool(lab.database.runs.find_one({"_id": lab.runs[kind], "info.metrics.name": "val.acc"}))

        add("completed", "--comment", "a good one").finish()
        add("again", "with", "lr=0.2").finish()
        assert add("failed", "with", "how=badly").process.wait(60) == 1
        add("queued", "--queue").finish()
        killed = add("dead", "with", "how=forever")
        _wait_for(lambda: in_database("dead"), "the run to be killed")
        killed.process.kill()
        killed.process.wait()
        assert [where for where, _ in reap(f"{mongo_url}/{lab.database.name}")] == [lab.runs["dead"]]
        add("running", "with", "how=forever")
        _wait_for(lambda: in_database("running"), "the run that goes on")
        yield lab
        client.drop_database(lab.database.name)


class Killed(BaseException):
    """Stands for the end of the process at one of its steps."""


@pytest.fixture
def killed_at(monkeypatch) -> Callable[..., bool]:
    """Do something that ends at one of its steps: `killed_at(stop, places, action)` tells whether it came so far.

    `places` are pairs of a class and the name of a method of it; each call of one of them is a step.
    """

    def run(stop: int, places: list[tuple[type, str]], action: Callable[[], object]) -> bool:
        left = [stop]

        def step(original: Callable) -> Callable:
            def call(*args: object, **kwargs: object) -> object:
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                return original(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for holder, name in places:
                patch.setattr(holder, name, step(getattr(holder, name)))
            try:
                action()
            except Killed:
                return True
        return False

    return run


# ---------------------------------------------------------------------- stores


@pytest.fixture(scope="module")
def third_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install a package whose entry point names `tests/sqlite_store.py`, and return its folder."""
    folder = tmp_path_factory.mktemp("site-packages")
    about = folder / "sqlite_store-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-store\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[sacristan.stores]\nsqlite = tests.sqlite_store:open_backend\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder


@pytest.fixture(params=["folder", "database", "sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the place of an empty store of each kind."""
    if request.param == "database":
        return f"{request.getfixturevalue('mongo_url')}/{request.getfixturevalue('database').name}"
    return str(tmp_path / "store") if request.param == "folder" else f"sqlite://{tmp_path / 'store.sqlite'}"
