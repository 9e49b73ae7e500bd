"""Folders of runs as Sacred writes them, made without running anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from sacristan.observers.record.points import summarize
from sacristan.runs import Store, open_store


@pytest.fixture
def write_store(tmp_path) -> Iterator[Callable[..., Store]]:
    """Write runs and open the folder: `write_store({"lr": 0.1, "metrics": {"val/loss": [0.3, 0.2]}}, ...)`.

    Of each run, `metrics` are its points (steps 0, 1, ... or pairs of steps and values), `status`, `result`, `command`
    and `info` what they are called, and the rest its config.
    """
    opened = []

    def write(*runs, name="store"):
        import numpy as np

        for number, config in enumerate(runs, 1):
            config = dict(config)
            metrics, status = config.pop("metrics", {}), config.pop("status", "COMPLETED")
            result, info, command = config.pop("result", None), config.pop("info", {}), config.pop("command", "main")
            folder = tmp_path / name / str(number)
            folder.mkdir(parents=True)
            start = f"2026-01-01T00:00:{number % 60:02}"
            document = {"experiment": {"name": "made"}, "command": command, "status": status, "start_time": start}
            (folder / "run.json").write_text(json.dumps({**document, "result": result}))
            (folder / "info.json").write_text(json.dumps(info))
            (folder / "config.json").write_text(json.dumps(config))
            sacred, summary = {}, {}
            for metric, points in metrics.items():
                points = [point if isinstance(point, tuple) else (step, point) for step, point in enumerate(points)]
                steps, values = [step for step, _ in points], [value for _, value in points]
                times = [f"2026-01-01T00:{step // 60 % 60:02}:{step % 60:02}" for step in range(len(steps))]
                sacred[metric] = {"steps": steps, "values": values, "timestamps": times}
                summary[metric] = summarize(np.array(values, float), np.array(steps))
            (folder / "metrics.json").write_text(json.dumps(sacred))
            (folder / "summary.json").write_text(json.dumps(summary))
        opened.append(open_store(tmp_path / name))
        return opened[-1]

    yield write
    for store in opened:
        store.close()
