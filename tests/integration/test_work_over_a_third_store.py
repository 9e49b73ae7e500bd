"""Sweeps and the queue over a store of another package (`tests/sqlite_store.py`), with nothing else changed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from sacristan.runs import copy, open_store
from sacristan.runs.sweeps.study.home import Place
from tests.processes import PIPE, STDOUT, Process, run

ROOT = Path(__file__).parents[2]
TRAIN = """
import argparse, os, time
from pathlib import Path
import sacristan

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
tracked = sacristan.init()
for epoch in range(3):
    tracked.log({"val/acc": args.lr + epoch}, epoch)
    while Path("wait").exists() and epoch == 1:
        Path("waits").touch()
        time.sleep(0.02)
"""
QUEUED = """
from pathlib import Path
import time
from sacristan.experiments import Experiment
ex = Experiment("tiny", system_metrics_s=None)

@ex.config
def config():
    x = 0

@ex.main
def main(_run, x):
    for step in range(3):
        _run.log_scalar("loss", x + step, step)
    while Path("wait").exists():
        Path("waits").touch()
        time.sleep(0.02)
    return x

ex.run_commandline()
"""


@pytest.fixture
def lab(tmp_path, third_store):
    """A folder with scripts, the URL of a store, and a function that gives words to `sacristan` there."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "tiny.py").write_text(QUEUED)
    return Lab(tmp_path, f"sqlite://{tmp_path / 'runs.sqlite'}", third_store)


class Lab:
    def __init__(self, folder: Path, url: str, packages: Path) -> None:
        self.folder, self.url = folder, url
        search = f"{ROOT}{os.pathsep}{packages}"
        self.options = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": search}, "text": True, "stdout": PIPE}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "sacristan", "--store", self.url, *words]

    def call(self, *words: str) -> str:
        done = run(self.command(*words), stderr=STDOUT, **self.options)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def start(self, *words: str) -> Process:
        return Process(self.command(*words), stderr=STDOUT, **self.options)

    def runs(self, where: str | Path | None = None):
        with open_store(where or self.url) as store:
            return [(run.status, run.get("lr"), run.summary) for run in store.find(sort="lr")]


SWEEP = ("train.py", "--over", "{lr: [0.1, 0.2, 0.3, 0.4]}", "--metric", "val/acc", "--goal", "maximize")
OPTIONS = ("--id", "s", "--packages", "")


def test_sweep_over_a_third_store_has_its_study_and_its_runs_there(lab):
    with open_store(lab.url, create=True):
        pass
    said = lab.call("sweep", *SWEEP, *OPTIONS, "--workers", "2")
    assert f"sweep s in {lab.url}, sweep s" in said
    assert "sweep s: 4 of 4 done" in said
    assert not (lab.folder / "my_runs" / "sweeps" / "s" / "sweep.json").exists()
    assert [(status, lr) for status, lr, _ in lab.runs()] == [("COMPLETED", lr) for lr in (0.1, 0.2, 0.3, 0.4)]
    assert lab.runs() == lab.runs(lab.folder / "my_runs")
    assert "sweep s: 4 of 4 done" in lab.call("sweep", "status")
    assert "val/acc 2.4 in the sweep" in lab.call("sweep", "best", "--id", "s")
    assert "0.4" in lab.call("ls", "--sweep", "s")
    # The same command again starts nothing, and a longer one extends the sweep.
    assert "sweep s: 4 of 4 done" in lab.call("sweep", *SWEEP, *OPTIONS)
    lab.call("sweep", "train.py", "--over", "{lr: [0.1, 0.2, 0.3, 0.4, 0.5]}", *SWEEP[3:], *OPTIONS)
    assert [lr for _, lr, _ in lab.runs()] == [0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.slow
def test_point_of_a_killed_agent_goes_to_the_next_one_over_a_third_store(lab):
    with open_store(lab.url, create=True):
        pass
    (lab.folder / "wait").touch()
    with lab.start("sweep", *SWEEP, *OPTIONS) as process:
        with contextlib.closing(Place(lab.folder, lab.url).home("s")) as home:
            while not (lab.folder / "waits").exists():
                assert process.poll() is None, process.communicate()[0]
            [agent] = home.leases().values()
            assert home.living_agents()
            os.kill(agent["pid"], signal.SIGKILL)
            (lab.folder / "wait").unlink()
        out, _ = process.communicate(120)
    assert process.returncode == 0, out
    assert [(status, lr) for status, lr, _ in lab.runs()] == [("COMPLETED", lr) for lr in (0.1, 0.2, 0.3, 0.4)]


@pytest.mark.slow
def test_board_shows_a_sweep_over_a_third_store(lab):
    from starlette.testclient import TestClient

    from sacristan.runs.board.serving import create_app

    with open_store(lab.url, create=True):
        pass
    lab.call("sweep", *SWEEP, *OPTIONS)
    with TestClient(create_app(lambda: open_store(lab.url)), base_url="http://127.0.0.1") as client:
        assert "4 of 4" in client.get("/sweeps/s").text


def test_runs_of_a_folder_are_synced_into_a_third_store_once_and_nothing_is_left_to_reap(lab):
    for rate in ("0.1", "0.2"):
        done = run([sys.executable, "-m", "sacristan", "run", "train.py", f"--lr={rate}"], stderr=STDOUT, **lab.options)
        assert done.returncode == 0, done.stdout
    sync = [sys.executable, "-m", "sacristan", "sync", "my_runs", "--url", lab.url]
    for outcome in ("delivered", "up to date"):
        said = run(sync, stderr=STDOUT, **lab.options).stdout
        assert [f"{outcome} as run {number} ({lab.url})" in said for number in (1, 2)] == [True, True], said
    assert [(status, lr) for status, lr, _ in lab.runs()] == [("COMPLETED", 0.1), ("COMPLETED", 0.2)]
    assert lab.call("reap") == ""


def test_queue_over_a_third_store_starts_a_run_once_and_has_its_record(lab):
    done = run([sys.executable, "tiny.py", "-F", "origin", "-q", "with", "x=3"], stderr=STDOUT, **lab.options)
    assert done.returncode == 0, done.stdout
    with open_store(lab.folder / "origin") as origin, open_store(lab.url, create=True) as store:
        uid = copy(origin.get("1"), store, stays_queued=True).run.uid
    (lab.folder / "origin").rename(lab.folder / "elsewhere")
    (lab.folder / "wait").touch()
    with lab.start("work", "--until-empty") as worker:
        while not (lab.folder / "waits").exists():
            assert worker.poll() is None, worker.communicate()[0]
        assert "no run waits" in lab.call("work", "--until-empty")
        (lab.folder / "wait").unlink()
        out, _ = worker.communicate(120)
    assert worker.returncode == 0, out
    with open_store(lab.url) as store:
        [found] = store.find()
        assert (found.id, found.uid, found.status, found.result) == ("1", uid, "COMPLETED", 3)
        assert found.metric("loss").values.tolist() == [3, 4, 5]


def test_run_whose_worker_was_killed_before_it_was_copied_is_copied_by_the_next_one(lab):
    done = run([sys.executable, "tiny.py", "-F", "origin", "-q", "with", "x=3"], stderr=STDOUT, **lab.options)
    assert done.returncode == 0, done.stdout
    with open_store(lab.url, create=True) as store, open_store(lab.folder / "my_runs", create=True) as here:
        with open_store(lab.folder / "origin") as origin:
            copy(origin.get("1"), store, stays_queued=True)
            fetched = copy(origin.get("1"), here, stays_queued=True).run
        path = fetched.folder / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": "COMPLETED", "result": 7}))
    (lab.folder / "origin").rename(lab.folder / "elsewhere")
    assert "no run waits" in lab.call("work", "--until-empty")
    with open_store(lab.url) as store:
        assert (store.get("1").status, store.get("1").result) == ("COMPLETED", 7)


def test_run_that_cannot_be_started_fails_in_a_third_store_too(lab):
    done = run([sys.executable, "tiny.py", "-F", "origin", "-q"], stderr=STDOUT, **lab.options)
    assert done.returncode == 0, done.stdout
    url = lab.url
    assert "HELD" in lab_copy(lab, "1")
    (lab.folder / "tiny.py").write_text("raise SystemExit('broken')")
    failed = run(lab.command("work", "--until-empty", "--held", "1", "--any-sources"), stderr=STDOUT, **lab.options)
    assert failed.returncode == 1, failed.stdout
    with open_store(url) as store:
        assert store.get("1").status == "FAILED"
        assert store.get("1").document["fail_trace"]


def lab_copy(lab: Lab, id: str) -> str:
    done = run(
        [sys.executable, "-m", "sacristan", "--store", "origin", "copy", id, "--to", lab.url],
        stderr=STDOUT,
        **lab.options,
    )
    assert done.returncode == 0, done.stdout
    return lab.call("ls")
