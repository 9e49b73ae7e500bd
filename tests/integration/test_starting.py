"""Past runs resumed, forked and reproduced from Python, as real processes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sacristan.runs import LaunchError, RunsError, Tolerance, fork, open_store, reproduce, resume
from tests.processes import warm_children

ROOT = Path(__file__).resolve().parents[2]
# A training in small, which is cut off once and keeps a state as checkpoints are kept.
SCRIPT = """
import json, os, signal, time, zipfile
from pathlib import Path
from sacristan.experiments import Experiment
from sacristan.observers import file_observer
from sacristan.observers.record.sealed_zip import SealingStream

ex = Experiment("small", system_metrics_s=None, save_git_info=False)
ex.observers.append(file_observer("my_runs"))


@ex.config
def config():
    # what it is multiplied by
    factor = 1.0
    # how it ends: well, cut, badly
    how = "well"
    # as the ingredient has it
    checkpoint = {"last": True, "resume": None}


@ex.automain
def main(_run, factor, how):
    folder, begin = Path(_run.observers[0].dir), 0
    state = folder / "state.json"
    if state.exists():
        saved = json.loads(state.read_text())
        _run.rewind(saved["position"])
        begin = saved["step"]
    for step in range(begin, 10):
        _run.log_scalar("loss", factor / (step + 1), step)
        if step == 4 and begin == 0 and how == "cut":
            position = _run.position()
            _run.flush()
            state.write_text(json.dumps({"position": position, "step": step + 1}))
            (folder / "checkpoints").mkdir()
            with zipfile.ZipFile("state.zip", "w") as archive:
                archive.writestr("state", "weights")
            with (folder / "checkpoints" / "last.pt").open("wb") as stream:
                sealing = SealingStream(stream)
                sealing.write(Path("state.zip").read_bytes())
                sealing.seal(json.dumps({"step": 5}).encode())
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
    if how == "badly":
        raise ValueError("it went badly")
    return factor
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A folder with an experiment; `lab("how=cut")` runs it, and returns its exit code."""
    (tmp_path / "small.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)

    def run(*settings):
        command = [sys.executable, "small.py", *(["with"] if settings else []), *settings]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120).returncode

    with warm_children():
        yield run


@pytest.fixture
def printed(tmp_path):
    """A file descriptor for what processes print, and what it got: `printed.fd`, `printed()`."""
    path = tmp_path / "printed.txt"

    class Printed:
        def __call__(self):
            return path.read_text()

    with path.open("wb") as stream:
        printed = Printed()
        printed.fd = stream.fileno()
        yield printed


def test_run_that_was_cut_off_is_resumed_to_its_end(lab, printed, caplog):
    assert lab("how=cut") == 128 + signal.SIGTERM
    Path("small.py").write_text(SCRIPT + "\n# changed\n")
    with open_store("my_runs") as store:
        assert store.get(1).status == "INTERRUPTED"
        with caplog.at_level(logging.WARNING):
            run = resume(store.get(1), ["--comment=again"], output=printed.fd)
        assert (run.id, run.status, run.result) == ("1", "COMPLETED", 1.0)
        assert run.metric("loss").steps.tolist() == list(range(10))
        assert [session["status"] for session in run.sessions] == ["INTERRUPTED", "COMPLETED"]
        assert [one.id for one in store.find()] == ["1"]
        with pytest.raises(LaunchError, match="run 1 is COMPLETED"):
            resume(run)
    assert "sources of run 1 have changed since it was recorded: small.py" in caplog.text
    assert "Completed" in printed()


def test_run_that_a_process_does_not_take_up_is_said(lab, printed):
    assert lab("how=cut") == 128 + signal.SIGTERM
    Path("small.py").write_text("raise SystemExit(3)")
    with open_store("my_runs") as store:
        with pytest.raises(LaunchError, match="run 1 was not resumed: its process ended with exit code 3"):
            resume(store.get(1), output=printed.fd)
        assert store.get(1).status == "INTERRUPTED"
        with pytest.raises(LaunchError, match="run 1 was not forked: its process recorded no run, and ended with exit"):
            fork(store.get(1), output=printed.fd)


def test_fork_is_a_new_run_with_its_parent_and_its_settings(lab, printed):
    assert lab("how=cut") == 128 + signal.SIGTERM
    with open_store("my_runs") as store:
        first = fork(store.get(1), ["how=well", "factor=2.0"], ["--comment=a fork"], output=printed.fd)
        second = fork(store.get(1), ["how=badly"], state="last.pt", output=printed.fd)
        assert (first.id, first.status, first.result) == ("2", "COMPLETED", 2.0)
        assert (second.id, second.status) == ("3", "FAILED")
        assert first.parent == second.parent == store.get(1)
        assert first["meta.comment"] == "a fork"
        assert first.config.checkpoint.resume == os.path.realpath("my_runs/1/checkpoints/last.pt")
        with pytest.raises(LaunchError, match=r"run 1 has no state best\.pt; good ones are: last\.pt"):
            fork(store.get(1), state="best.pt")


def test_run_is_reproduced_and_judged_by_its_tolerance(lab, printed, tmp_path):
    assert lab("factor=3.0") == 0
    with open_store("my_runs") as store:
        done = reproduce(store.get(1), keep=tmp_path / "kept", output=printed.fd)
        assert (done.verdict.verdict, done.run.id, done.run.parent) == ("IDENTICAL", "2", store.get(1))
        assert (tmp_path / "kept" / "code" / "small.py").read_text() == SCRIPT
        assert [entry["verdict"] for entry in store.get(1).reproductions] == ["IDENTICAL"]
        Path("small.py").write_text(SCRIPT.replace("factor / (step + 1)", "factor / (step + 1.001)"))
        strict = reproduce(store.get(1), Tolerance(rtol=1e-6), in_place=True, output=printed.fd)
        assert strict.verdict.text.startswith("DIVERGED: loss at step 0: recorded 3.0, now 2.99")
        lenient = reproduce(store.get(1), Tolerance(rtol=0.01), in_place=True, output=printed.fd)
        assert lenient.verdict.verdict == "WITHIN TOLERANCE"
        with pytest.raises(RunsError, match="tolerance: run 1 has no metric 'lsos'; did you mean loss"):
            reproduce(store.get(1), Tolerance(by_metric={"lsos": 1.0}))
        assert len(store.find()) == 4


def test_reproduction_that_fails_where_the_run_did_not_is_refused(lab, printed):
    assert lab() == 0
    Path("small.py").write_text(SCRIPT.replace('if how == "badly"', "if True"))
    message = "run 1 could not be run again: run 2 failed: ValueError: it went badly"
    with open_store("my_runs") as store, pytest.raises(LaunchError, match=message):
        reproduce(store.get(1), in_place=True, output=printed.fd)
