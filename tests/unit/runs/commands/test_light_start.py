"""Commands that list runs or show one start at once: they load nothing heavy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
HEAVY = {"numpy", "torch", "sacred", "pymongo", "pandas"}


@pytest.mark.parametrize("command", [["ls", "--where", "lr<2", "--sort", "lr"], ["show", "1"]])
def test_runs_are_listed_and_shown_without_heavy_packages(tmp_path, command):
    run = tmp_path / "1"
    run.mkdir()
    document = {"experiment": {"name": "digits"}, "command": "main", "status": "COMPLETED", "uid": "1" * 32}
    (run / "run.json").write_text(json.dumps(document | {"start_time": "2026-01-01T00:00:00"}))
    (run / "config.json").write_text('{"lr": 1}')
    start = [sys.executable, "-X", "importtime", "-m", "sacristan", "--store", str(tmp_path), *command]
    done = subprocess.run(start, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "digits" in done.stdout
    assert "sacristan.runs.stores.run" in loaded
    assert loaded & HEAVY == set()
