"""A project of one's own, beside no lab: `sacristan new NAME --project`, and what its README says."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from sacristan.experiments.new import write_project
from tests.processes import run

LAB = Path(__file__).parents[2]


@pytest.fixture
def python(tmp_path):
    """Return what runs the words after `python` in a new project."""
    write_project("my_vision", tmp_path)

    def call(*words):
        environment = {**os.environ, "PYTHONPATH": str(LAB)}
        command = [sys.executable, *words]
        done = run(command, cwd=tmp_path / "my_vision", env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done

    return call


@pytest.mark.slow
def test_project_trains_with_recipes_sweeps_and_reproduces(python, tmp_path):
    python("exp.py", "with", "configs/digits_mlp.yaml", "epochs=1", "data.limit=200")
    readme = (tmp_path / "my_vision" / "README.md").read_text()
    (sweep,) = re.findall(r"python (exp\.py sweep\.run .*)", readme)
    python(*shlex.split(sweep), "data.limit=200")
    assert python("-m", "sacristan", "reproduce", "1").stdout.startswith("IDENTICAL")
    listed = json.loads(python("-m", "sacristan", "ls", "--json").stdout)
    assert {run["name"] for run in listed} == {"my_vision"}
    assert [run["status"] for run in listed] == ["COMPLETED"] * 4
    assert run_of(tmp_path, 1)["meta"]["named_configs"] == [str(LAB / "configs" / "digits_mlp.yaml")]


def run_of(folder, id):
    return json.loads((folder / "my_vision" / "my_runs" / str(id) / "run.json").read_text())
