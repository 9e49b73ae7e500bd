"""Peak memory of recording and delivery, in a process of their own."""

import sys
from pathlib import Path

import pytest

from tests.processes import DEVNULL, PIPE, run

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux's /proc"
)

MIB = 2**20

HEAD = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path

def memory(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))

def begin():
    global before
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here

def end():
    Path("peak").write_text(str(memory("VmHWM") - before))
"""

LOGS_MANY = """
import json, numpy as np
from sacristan.observers.mongo.delivery import Delivery
from sacristan.observers.record.points import POINT
import pymongo
folder = Path("runs/1")
folder.mkdir(parents=True)
run = {"uid": "a" * 32, "status": "COMPLETED", "start_time": "2026-01-01T00:00:00", "artifacts": [], "command": "main",
       "experiment": {"name": "recorded", "sources": []}, "meta": {}, "host": {}, "resources": []}
(folder / "run.json").write_text(json.dumps(run))
points = np.zeros(100_000, POINT)
points["metric"], points["step"] = np.arange(100_000) % 2_000, np.arange(100_000) // 2_000
points.tofile(folder / "metrics.bin")
names = (json.dumps({"id": number, "name": f"metric/{number}"}) + "\\n" for number in range(2_000))
(folder / "metrics.names.jsonl").write_text("".join(names))
database = pymongo.MongoClient(URL)[NAME]
database.runs.find_one()
delivery = Delivery(folder, folder.parent, database)
begin()
delivery.advance(last=True)
end()
assert delivery.is_complete
"""

PRINTS_MUCH = """
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
ex = Experiment("recorded", system_metrics_s=None)
ex.observers.append(FileObserver("runs"))
@ex.main
def main(_run):
    begin()
    for _ in range(32):
        for _ in range(256): print("ä" * 2047)
ex.run(options={"--capture": MODE, "--loglevel": "ERROR"})
end()
"""


def peak(folder, body, **names):
    script = folder / "script.py"
    setting = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    script.write_text(HEAD.format(root=str(Path(__file__).parents[2])) + setting + body)
    done = run([sys.executable, script.name], cwd=folder, stdout=DEVNULL, stderr=PIPE, text=True, cold=True)
    assert done.returncode == 0, done.stderr
    return int((folder / "peak").read_text())


@pytest.mark.slow
def test_delivery_of_many_metrics_takes_no_memory_for_each(tmp_path, mongo_url, database):
    """A mask over all points for each metric would take 200 MB."""
    assert peak(tmp_path, LOGS_MANY, URL=mongo_url, NAME=database.name) < 64 * MIB
    assert database.metrics.count_documents({"steps": list(range(50))}) == 2_000


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fd", pytest.param("sys", marks=pytest.mark.slow)])
def test_output_of_32_megabytes_is_not_held_in_memory(tmp_path, mode):
    assert peak(tmp_path, PRINTS_MUCH, MODE=mode) < 24 * MIB
    output = (tmp_path / "runs" / "1" / "cout.txt").read_bytes()
    assert output.count(b"\n") == 32 * 256
    assert len(output) == 32 * 256 * 4095
