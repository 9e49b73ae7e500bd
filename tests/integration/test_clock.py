"""Runs whose clock is set while they go on, or before they are resumed: a wall clock of their own, set for real."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sacristan import runs

BODY = """
import ctypes, json, signal
from sacristan.observers import Image
from sacristan.runs import open_store

ex.observers.append(FileObserver("runs"))
set_clock = ctypes.CDLL(os.environ["LD_PRELOAD"]).set_clock
resume = os.environ.get("RESUME")

def log_for(_run, seconds):
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        _run.log_scalar("loss", 0.5)

@ex.main
def main(_run):
    log_for(_run, 0.1)
    set_clock(-3600 if resume is None else 864_000)
    log_for(_run, 0.1)
    _run.log_media("picture", Image([[0.0, 1.0], [1.0, 0.0]]))
    _run.flush()
    if resume is None:
        with open_store("runs") as store:
            assert 0 <= store.get("1").duration_s < 600, store.get("1").duration_s
        os.kill(os.getpid(), signal.SIGKILL)

if resume is not None:
    set_clock(-3600)
ex.run(meta_info={"resume": resume} if resume else {}, options={"--beat-interval": 0.05})
"""


@pytest.mark.slow
def test_clock_set_back_and_forward_changes_neither_durations_nor_times_of_points(tmp_path, start, settable_clock):
    killed = start(tmp_path, BODY, env=settable_clock, cold=True)
    assert killed.process.wait(120) == -9, killed.err.read_text()
    with runs.open_store(tmp_path / "runs") as store:
        dead = store.get("1")
        assert dead.status == "DEAD"
        assert 0 <= dead.duration_s < 600
        before = dead.metric("loss").times
        assert [run.id for run in store.find("duration>=0")] == ["1"]

    log = start(tmp_path, BODY, env={**settable_clock, "RESUME": "runs/1"}, cold=True).finish()
    assert "Completed after 0:0" in log
    with runs.open_store(tmp_path / "runs") as store:
        run = store.get("1")
        assert 0.4 <= run.duration_s < 600
        assert run.status == "COMPLETED"
        times = run.metric("loss").times
        assert times[: len(before)].tolist() == before.tolist()
        assert (np.diff(times) >= 0).all()
        assert 0.3 <= times[-1] < 600  # up to a point before the kill
        assert all(0 <= entry["time"] < 600 for entry, _ in run.media_entries())
    first, second = json.loads((tmp_path / "runs" / "1" / "run.json").read_text())["sessions"]
    assert first["start_time"] <= first["stop_time"] <= second["start_time"] <= second["stop_time"]
