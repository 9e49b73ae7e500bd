"""Ten minutes of a run that logs 2,000 points a second, while its server is stopped, killed and started at random."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import numpy as np
import pymongo
import pytest

from sacristan.observers import read_metrics
from sacristan.observers.record.points import POINT

SECONDS = float(os.environ.get("SACRISTAN_SOAK_S", "600"))
POINTS_PER_S = 2_000

BODY = """
ex.observers.append(FileObserver("runs"))
ex.observers.append(MongoObserver("{url}", db_name="soak"))
@ex.automain
def main(_run):
    began, step = time.monotonic(), 0
    while step < {count}:
        due = min(int((time.monotonic() - began) * {rate}), {count})
        while step < due:
            _run.log({{"train/loss": 1 / (step + 1), "train/lr": step * 0.5}}, step // 2)
            step += 2
        print("step", step)
        time.sleep(0.01)
"""


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def stored(database, name):
    """Return steps and values of a metric in the database, from its document and its chunks."""
    document = database.metrics.find_one({"name": name})
    chunks = [
        np.frombuffer(chunk["data"], POINT)
        for chunk in database.metrics_chunks.find({"name": name}, sort=[("index", 1)])
    ]
    points = np.concatenate(chunks)
    return (
        np.concatenate([document["steps"], points["step"]]),
        np.concatenate([document["values"], points["value"]]),
    )


@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 300)
def test_soak_keeps_every_point_in_both_stores_and_its_memory_flat(tmp_path, mongod, start):
    rng = random.Random(0)
    mongod.start()
    count = int(SECONDS * POINTS_PER_S) // 2 * 2
    recorded = start(tmp_path, BODY.format(url=mongod.url, count=count, rate=POINTS_PER_S))
    began, memory, change_at, num_outages = time.monotonic(), [], 5.0, 0
    while recorded.process.poll() is None:
        elapsed = time.monotonic() - began
        if elapsed > change_at and (mongod.pid is None or elapsed < SECONDS - 20):
            if mongod.pid is None:
                mongod.start()
            else:
                rng.choice([mongod.stop, mongod.kill])()
                num_outages += 1
            change_at = time.monotonic() - began + rng.uniform(1, 40)
        if elapsed > 5:
            memory.append(resident_bytes(recorded.process.pid))
        time.sleep(0.25)
    assert "not delivered" not in recorded.finish()
    print(f"{count} points, {num_outages} outages, memory {min(memory) >> 20} to {max(memory) >> 20} MiB")

    with pymongo.MongoClient(mongod.url) as client:
        run = client.soak.runs.find_one()
        assert run["status"] == "COMPLETED"
        on_disk = read_metrics(tmp_path / "runs" / "1")
        steps = np.arange(count // 2)
        for name, values in (("train/loss", 1 / (2.0 * steps + 1)), ("train/lr", steps * 1.0)):
            for found_steps, found_values in (
                (on_disk[name].steps, on_disk[name].values),
                stored(client.soak, name),
            ):
                np.testing.assert_array_equal(found_steps, steps)
                np.testing.assert_array_equal(found_values, values)
    third = len(memory) // 3
    assert max(memory[-third:]) < max(memory[:third]) + 32 * 2**20
