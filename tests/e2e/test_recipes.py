"""The commands in the headers of the recipes, and the ranges of test metrics that the headers promise."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.processes import run

LAB = Path(__file__).parents[2]
# `finetune` takes two commands; `language_model` depends on the version of Python, and has a test of its own.
RECIPES = sorted({path.stem for path in (LAB / "configs").glob("*.yaml")} - {"finetune", "language_model"})


def header(name):
    """Return the command of a recipe, and by metric the range it promises."""
    lines = (LAB / "configs" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if line.startswith("#"))
    command = re.search(r"^# Command: python (.*)", text, re.M)[1]
    expected = re.search(r"^# Expect: +test (.*)", text, re.M)[1]
    ranges = re.findall(r"(\w+) ([\d.]+\d) to ([\d.]+\d)", expected)
    return shlex.split(command), {metric: (float(low), float(high)) for metric, low, high in ranges}


@pytest.mark.parametrize("name", RECIPES)
def test_header_of_a_recipe_names_its_command_and_the_range_of_a_metric(name):
    command, ranges = header(name)
    assert f"configs/{name}.yaml" in command
    assert ranges
    assert all(low < high for low, high in ranges.values())


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_gives_what_its_header_promises(tmp_path, name):
    command, ranges = header(name)
    shutil.copytree(LAB / "configs", tmp_path / "configs")
    script = [str(LAB / "exp.py"), *command[1:]] if command[0] == "exp.py" else command
    environment = {**os.environ, "PYTHONPATH": str(LAB)}
    done = run([sys.executable, *script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "my_runs" / "1" / "info.json").read_text())["test"]
    compared = {metric: measured[metric] for metric in ranges if metric in measured}
    assert compared
    for metric, value in compared.items():
        low, high = ranges[metric]
        margin = (high - low) / 10  # other numbers of threads add up in another order
        assert low - margin <= value <= high + margin, (metric, value)
