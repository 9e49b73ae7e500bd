"""Runs that are killed and go on in the same record, as real processes."""

import functools
import json
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np

from observers.schema import read_media, read_metrics, read_names, read_points

# A training in small: `state.json` is its checkpoint, and holds the position of the record.
TRAINING = """
import json, pathlib
import numpy as np
from observers import Image
from configs.atomic_file import replacing
ex.observers.extend([{observers}])
state = pathlib.Path("state.json")

@ex.main
def main(_run, steps=3000):
    _run.log_scalar("model/parameters", 10)
    saved = json.loads(state.read_text()) if state.exists() else {{"step": 0, "position": None}}
    if saved["step"]:
        _run.rewind(saved["position"])
    for step in range(saved["step"], steps):
        _run.log_scalar("loss", 1 / (step + 1))
        _run.log_scalar("half", step, step if step % 2 else step + 0.5)
        if step % 10 == 0:
            _run.log_scalar("odd", "text" if step % 20 else step)
            _run.log_media("image", Image(np.full((4, 4), step % 256, np.uint8)))
        print("step", step)
        if step % 37 == 0:
            position = _run.position()
            _run.flush()
            with replacing(state) as stream:
                stream.write(json.dumps({{"step": step + 1, "position": position}}).encode())
        time.sleep(0.001)
    return "done"

resume = os.environ.get("SACRISTAN_RESUME")
ex.run(meta_info={{"resume": resume}} if resume else {{}}, options={{"--beat-interval": 0.05}})
"""


def load(folder, name="run.json"):
    return json.loads((Path(folder) / name).read_text())


def has_points(folder, count):
    return folder.exists() and len(read_points(folder)) > count


def check_whole(folder, steps):
    """See to it that each point is there exactly once, in its order."""
    metrics = read_metrics(folder)
    assert metrics["loss"].steps.tolist() == list(range(steps))
    assert np.array_equal(metrics["loss"].values, 1 / (np.arange(steps) + 1))
    assert metrics["half"].steps.tolist() == [s if s % 2 else s + 0.5 for s in range(steps)]
    assert metrics["half"].values.tolist() == list(range(steps))
    assert metrics["odd"].values.tolist() == list(range(0, steps, 20))
    odd = [json.loads(line) for line in (folder / "values.jsonl").read_text().splitlines()]
    assert [row["step"] for row in odd] == list(range(1, len(range(0, steps, 10)), 2))
    assert len(metrics["model/parameters"]) == 1
    assert [record.step for record in read_media(folder)] == list(range(len(range(0, steps, 10))))
    assert all(record.path.exists() for record in read_media(folder))
    assert load(folder, "summary.json")["loss"]["count"] == steps
    assert set(read_names(folder)) == set(np.unique(read_points(folder)["metric"]).tolist())
    for name, series in metrics.items():
        if name.startswith("system/"):
            assert max(Counter(series.steps.tolist()).values()) == 1


def test_run_killed_at_random_moments_has_each_point_once(tmp_path, start, wait_for, monkeypatch):
    folder, chance = tmp_path / "runs" / "1", random.Random(os.environ.get("SEED", 1))
    body = TRAINING.format(observers="FileObserver('runs')")
    wanted = 0
    for _ in range(3):
        recorded = start(tmp_path, body)
        wanted += chance.randrange(200, 500)
        wait_for(functools.partial(has_points, folder, 2 * wanted), "points")
        recorded.process.kill()
        recorded.process.wait()
        with (folder / "metrics.bin").open("ab") as stream:
            stream.write(b"torn")
        monkeypatch.setenv("SACRISTAN_RESUME", str(folder))
    first = load(folder)
    start(tmp_path, body).finish()
    check_whole(folder, 3000)
    run = load(folder)
    assert (run["uid"], run["start_time"]) == (first["uid"], first["start_time"])
    assert (run["status"], run["result"], run["revision"]) == ("COMPLETED", "done", 3)
    assert [session["status"] for session in run["sessions"]] == ["DEAD", "DEAD", "DEAD", "COMPLETED"]
    steps = [session["step"] for session in run["sessions"]]
    assert steps == sorted(steps)
    assert steps[0] == 0 < steps[1]
    times = [time for session in run["sessions"] for time in (session["start_time"], session["stop_time"])]
    assert times == sorted(times)
    assert [path.name for path in (tmp_path / "runs").iterdir() if path.name.isdigit()] == ["1"]
    assert all(isinstance(session["command_line"], list) for session in run["sessions"])
    output = (folder / "cout.txt").read_text()
    assert output.count("--- session ") == 3
    assert "step 2999" in output
