"""System metrics of real runs: in the folder, in MongoDB, beside forked processes, and never in the way."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from sacristan.experiments import Experiment
from sacristan.experiments.running import system_metrics as module
from sacristan.observers import FileObserver, MongoObserver, read_metrics

ALWAYS = {
    "system/cpu_percent",
    "system/process_cpu_percent",
    "system/memory_percent",
    "system/process_memory_bytes",
    "system/disk_free_bytes",
}


def load(folder, name="run.json"):
    return json.loads((Path(folder) / name).read_text())


def record(main, *observers, options={}, **settings):
    ex = Experiment("recorded", base_dir=Path(__file__).parent, **settings)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys", **options})


def samplers():
    return [thread for thread in threading.enumerate() if thread.name == "sacristan-system-metrics"]


BURNS = '''
import subprocess, psutil
ex = Experiment("recorded", system_metrics_s=1.0)
ex.observers.append(FileObserver("runs"))
CHILD = """
import time
while time.process_time() < 1: pass
time.sleep(600)
"""
@ex.automain
def main(_run):
    begin = time.monotonic()
    child = subprocess.Popen([sys.executable, "-c", CHILD])
    while sum(psutil.Process(child.pid).cpu_times()[:2]) < 0.9 or time.monotonic() < begin + 3.2: time.sleep(0.05)
    child.kill(); child.wait()
'''


@pytest.mark.slow
def test_run_of_some_seconds_has_samples_by_the_second_that_include_its_children(tmp_path, start):
    start(tmp_path, BURNS).finish()
    found = read_metrics(tmp_path / "runs" / "1")
    assert found.keys() >= ALWAYS
    steps = found["system/memory_percent"].steps
    assert len(steps) >= 3
    assert (np.diff(steps) > 0).all()
    # All but the child only waits; what it burned went by within the run, so that some second had a good part of it.
    share, seconds = found["system/process_cpu_percent"].values, found["system/process_cpu_percent"].times
    assert (share * np.diff(seconds, prepend=0.0)).sum() / 100 > 0.6
    assert load(tmp_path / "runs" / "1", "summary.json")["system/disk_free_bytes"]["last"] > 0
    assert load(tmp_path / "runs" / "1", "metrics.json").keys() >= ALWAYS


def test_short_run_has_a_sample_and_leaves_no_thread(tmp_path):
    during = []

    def main():
        torch.rand(3)
        during.append(len(samplers()))

    record(main, FileObserver(tmp_path / "runs"))
    assert (during, samplers()) == ([1], [])
    found = read_metrics(tmp_path / "runs" / "1")
    assert found.keys() >= ALWAYS - {"system/cpu_percent", "system/process_cpu_percent"}


@pytest.mark.parametrize(
    ("observed", "options", "settings"),
    [
        (False, {}, {}),
        (True, {}, {"system_metrics_s": None}),
        (True, {"--unobserved": True}, {}),
        (True, {"--beat-interval": "0"}, {}),  # without beats no metric is recorded
    ],
)
def test_run_that_is_not_recorded_or_has_them_off_starts_no_thread(tmp_path, observed, options, settings):
    during = []
    observers = [FileObserver(tmp_path / "runs")] if observed else []
    record(lambda: during.extend(samplers()), *observers, options=options, **settings)
    assert during == []
    if (tmp_path / "runs").exists():
        assert read_metrics(tmp_path / "runs" / "1") == {}


def test_failing_run_ends_its_sampler(tmp_path):
    def main():
        raise RuntimeError("broken on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        record(main, FileObserver(tmp_path / "runs"))
    assert samplers() == []
    assert "system/memory_percent" in read_metrics(tmp_path / "runs" / "1")


def test_sampler_that_cannot_be_made_costs_the_run_its_metrics_only(tmp_path, monkeypatch, caplog):
    def fail():
        raise ImportError("no pynvml here")

    monkeypatch.setattr(module, "load_nvml", fail)
    assert record(lambda: 3, FileObserver(tmp_path / "runs")).result == 3
    assert "system metrics: got ImportError: no pynvml here; the run continues without them" in caplog.messages
    assert load(tmp_path / "runs" / "1")["status"] == "COMPLETED"


WORKERS = """
import torch
ex.observers.append(FileObserver("runs"))
class Items(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        import psutil
        return float(psutil.Process().pid > 0)
@ex.automain
def main(_run):
    for _ in range(3):
        loader = torch.utils.data.DataLoader(Items(), batch_size=4, num_workers=2, multiprocessing_context="fork")
        assert sum(batch.sum().item() for batch in loader) == 64
    return 1
"""


def test_loader_workers_forked_beside_the_sampler_work_and_end(tmp_path, start):
    stderr = start(tmp_path, WORKERS).finish()
    assert "Traceback" not in stderr
    assert load(tmp_path / "runs" / "1")["status"] == "COMPLETED"


def test_system_metrics_are_delivered_to_mongodb(tmp_path, database, mongo_url):
    record(lambda: 1, MongoObserver(mongo_url, db_name=database.name, failure_dir=tmp_path / "spool"))
    metric = database.metrics.find_one({"name": "system/memory_percent"})
    assert 0 < metric["values"][0] <= 100
    listed = {entry["name"]: entry["id"] for entry in database.runs.find_one()["info"]["metrics"]}
    assert listed["system/memory_percent"] == str(metric["_id"])


def test_commands_that_record_nothing_load_neither_psutil_nor_nvml(request):
    script = (
        "import sys, exp; exp.ex.run('print_config'); "
        "print([name for name in ('psutil', 'pynvml', 'torch') if name in sys.modules])"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=request.config.rootpath, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
