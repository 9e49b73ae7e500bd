"""Sweeps as a user types them: how they end, what they wait for, and where their code and their runs go."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import sys
import time

import psutil
import pytest

from sacristan.experiments.new import write_experiment
from sacristan.runs import open_store
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study import Study
from sacristan.runs.sweeps.study.home import Place
from tests.integration.test_sweeps import FAST, OVER, ROOT, TINY, command
from tests.processes import PIPE, STDOUT, Process, run


@pytest.fixture(scope="session")
def mongo_url(journaled_mongo_url):
    return journaled_mongo_url


@pytest.mark.slow
def test_a_sweep_all_of_whose_trials_fail_ends_with_exit_code_1_and_the_reason(tmp_path):
    broken = "import os\nif 'SACRISTAN_TRIAL' in os.environ:\n    raise SystemExit('no license for x')\n"
    (tmp_path / "tiny.py").write_text(broken + TINY)
    done = command("sweep.run", "with", OVER, "sweep.id=s", FAST, cwd=tmp_path)
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith(
        "error: sweep s: all 3 trials have failed: trial 2 ended with exit code 1 before it recorded"
    )
    assert "recorded a run: no license for x;" in last
    way_out = (
        "what runs printed is in my_runs/sweeps/s; to run them again once the cause is fixed: sweep.retry_failed=True"
    )
    assert last.endswith(way_out)
    (tmp_path / "tiny.py").write_text(TINY)
    again = command("sweep.run", "with", OVER, "sweep.id=s", FAST, "sweep.retry_failed=True", cwd=tmp_path)
    assert "3 of 3 done" in again.stdout


@pytest.mark.slow
def test_a_sweep_returns_when_points_of_other_agents_have_ended_too(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    place = Place(tmp_path / "my_runs")
    words = ("sweep.run", "with", "sweep.over={x: [0.0, 1.0]}", "sweep.metric=loss", "sweep.id=s", FAST)
    assert command(*words, "sweep.count=1", cwd=tmp_path).returncode == 0
    home = place.home("s")
    definition = dataclasses.replace(home.definition(), count=None)
    assert home.replace(definition, home.definition())
    home.beat("other")
    assert home.claims(1, "other").add(0)
    study = Study(home, definition, read_spec(definition.spec))
    study.progress()
    study.take(1)
    with Process([sys.executable, "tiny.py", *words], cwd=tmp_path, stdout=PIPE, stderr=STDOUT, text=True) as process:
        assert any("waiting for the points of other agents" in line for line in process.stdout)
        assert process.poll() is None
        study.finish(1, "COMPLETE", [1.25])
        home.leave("other")
        out, _ = process.communicate(60)
    assert "2 of 2 done" in out


FULL = """
import os, resource
if "SACRISTAN_TRIAL" not in os.environ:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
"""


AGENTS_END = "error: agents end before they get anything done, the last one by exit code 1: error: [Errno 28] "


@pytest.mark.slow
@pytest.mark.parametrize(("size", "message"), [
    (100, "error: my_runs/sweeps/s/sweep.json cannot be written (File too large); make room or check its permissions"),
    pytest.param(1200, AGENTS_END, marks=pytest.mark.nightly),
])  # fmt: skip
def test_a_full_disk_ends_a_sweep_with_one_sentence(tmp_path, size, message):
    (tmp_path / "tiny.py").write_text(FULL.format(size=size) + TINY)
    done = command("sweep.run", "with", OVER, "sweep.metric=loss", "sweep.id=s", FAST, cwd=tmp_path, cold=True)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith(message), done.stdout
    assert "Traceback" not in done.stdout
    (tmp_path / "tiny.py").write_text(TINY)
    again = command("sweep.run", "with", OVER, "sweep.metric=loss", "sweep.id=s", FAST, cwd=tmp_path)
    assert "3 of 3 done" in again.stdout


@pytest.mark.slow
def test_an_experiment_that_was_written_for_a_start_can_sweep(tmp_path):
    write_experiment("my_study", tmp_path)
    words = ("sweep.run", "with", "fast", "data.limit=100", "sweep.over={noise.level: [0.1]}", "sweep.metric=result")
    done = run(
        [sys.executable, "my_study.py", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=PIPE,
        stderr=STDOUT,
        text=True,
        starts_python=True,
    )
    assert "1 of 1 done" in done.stdout, done.stdout
    assert "best: trial 0, result" in done.stdout


@pytest.mark.slow
def test_what_a_method_needs_is_asked_for_before_anything_starts(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "cmaes.py").write_text("raise ImportError('away', name='cmaes')")
    over = "sweep.over={x: {min: 0.0, max: 1.0}}"
    done = command("sweep.run", "with", over, "sweep.metric=loss", "sweep.method=cma-es", cwd=tmp_path, cold=True)
    assert "the method cma-es needs the package 'cmaes', which is not installed" in done.stdout.splitlines()[-1]
    assert not (tmp_path / "my_runs").exists()


@pytest.mark.slow
def test_a_sweep_that_was_copied_or_moved_runs_what_lies_there_and_says_so(tmp_path):
    (first := tmp_path / "first").mkdir()
    (first / "tiny.py").write_text(TINY)
    words = ("sweep.run", "with", OVER, "sweep.metric=loss", FAST, "sweep.id=s")
    assert "1 of 1 done" in command(*words, "sweep.count=1", cwd=first).stdout
    shutil.copytree(first, copied := tmp_path / "copied")
    (copied / "tiny.py").write_text(TINY.replace("(x - 2) ** 2", "100 + (x - 2) ** 2"))
    done = command(*words, "--force", "sweep.count=2", cwd=copied)
    assert f"note: sweep s was started by {first}/tiny.py in {first}; runs that start now are those of" in done.stdout
    assert f"those of {copied}/tiny.py in {copied}" in done.stdout
    assert "note: runs of sweep s had the options none; those that start now have --force" in done.stdout
    assert "trial 1 done: loss 101.25" in done.stdout
    moved = first.rename(tmp_path / "moved")
    done = command(*words, "sweep.count=2", cwd=moved)
    assert "trial 1 done: loss 1.25" in done.stdout, done.stdout
    assert "note" not in command(*words, "sweep.count=3", cwd=moved).stdout
    # An agent, and finals, of a sweep that was made elsewhere; and one of another experiment.
    again = moved.rename(first)
    for name in ("sweep.agent", "sweep.best"):
        said = command(name, "with", "sweep.id=s", "sweep.reseed=2", FAST, cwd=again).stdout
        assert f"note: sweep s was started by {moved}/tiny.py in {moved}; runs that start now are" in said
    with open_store(again / "my_runs") as store:
        assert {run["experiment.base_dir"] for run in store.find("meta.sweep.id~^s-final-")} == {str(again)}
    (again / "tiny.py").write_text(TINY.replace('"tiny"', '"other"'))
    assert "a sweep of the experiment 'tiny', expected one of 'other'" in command(
        "sweep.agent", "with", "sweep.id=s", cwd=again
    ).stdout  # fmt: skip


# Ends the server of its database, as its last deed.
ENDS_SERVER = """
os.kill(int(open("server").read()), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_trial_whose_database_was_away_is_delivered_before_the_sweep_ends(tmp_path, mongod):
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "fault.py").write_text(ENDS_SERVER)
    mongod.start()
    (tmp_path / "server").write_text(str(mongod.pid))
    url = f"{mongod.url.rstrip('/')}/lab"
    words = ["sweep.run", "with", "sweep.over={kind: [kills]}", "sweep.metric=loss", "sweep.id=s", FAST, "-m", url]
    environment = {**os.environ, "SACRISTAN_DRAIN_S": "0.5"}
    options = {"cwd": tmp_path, "env": environment, "stdout": PIPE, "stderr": STDOUT, "text": True}
    with Process([sys.executable, "tiny.py", *words], **options) as process:
        record = tmp_path / "my_runs" / "1" / "run.json"
        lease = record.with_name("lease.json")
        while not lease.exists() or psutil.pid_exists(json.loads(lease.read_text())["pid"]):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        assert json.loads(record.read_text())["status"] == "COMPLETED"
        mongod.kill()  # which reaps it
        mongod.start()
        out, _ = process.communicate(120)
    assert process.returncode == 0, out
    assert "not delivered" not in out
    with open_store(url) as store:
        assert [run.status for run in store.find()] == ["COMPLETED"]
    (tmp_path / "my_runs" / "1" / "delivered.json").unlink()
    said = command("sweep.status", "with", "sweep.id=s", "-m", url, cwd=tmp_path).stdout
    assert f"1 run is not delivered to MongoDB at {url}; deliver: sacristan sync my_runs" in said


@pytest.mark.nightly
def test_a_trial_of_a_copied_project_is_resumed_by_the_code_that_lies_there(tmp_path):
    (first := tmp_path / "first").mkdir()
    write_experiment("my_study", first)
    words = ["sweep.run", "with", "fast", "training.epochs=10000", "sweep.over={noise.level: [0.1]}", "sweep.id=s"]
    streams = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdout": PIPE, "stderr": STDOUT, "text": True}
    with Process([sys.executable, "my_study.py", *words], cwd=first, **streams) as process:
        while not (first / "my_runs" / "1" / "checkpoints" / "last.pt").exists():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(120)
    shutil.copytree(first, copied := tmp_path / "copied")
    script = copied / "my_study.py"
    script.write_text(
        script.read_text().replace("    where = device", "    raise ValueError('this is the copy')\n    where = device")
    )
    done = run([sys.executable, "my_study.py", *words], cwd=copied, starts_python=True, **streams)
    assert "run 1 is FAILED: ValueError: this is the copy" in done.stdout, done.stdout
