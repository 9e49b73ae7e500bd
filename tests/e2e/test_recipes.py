"""The commands in the headers of the recipes, and the ranges of test metrics that the headers promise."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.processes import run

LAB = Path(__file__).parents[2]
RECIPES = sorted(path.stem for path in (LAB / "configs").glob("*.yaml"))
# What the language model reads, the reference of the language, changes with Python.
PYTHON = {"language_model": (3, 11)}


def header(name):
    """Return the commands of a recipe, and by metric the range it promises."""
    lines = (LAB / "configs" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if line.startswith("#"))
    commands = re.findall(r"^# (?:First|Command): +(?:python )?(.*)", text, re.M)
    expected = re.search(r"^# Expect: +test (.*)", text, re.M)[1]
    ranges = re.findall(r"(\w+) ([\d.]+\d) to ([\d.]+\d)", expected)
    return list(map(shlex.split, commands)), {metric: (float(low), float(high)) for metric, low, high in ranges}


@pytest.mark.parametrize("name", RECIPES)
def test_header_of_a_recipe_names_its_command_and_the_range_of_a_metric(name):
    commands, ranges = header(name)
    assert commands
    assert all(f"configs/{name}.yaml" in command for command in commands)
    assert ranges
    assert all(low < high for low, high in ranges.values())


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_gives_what_its_header_promises(tmp_path, name):
    if sys.version_info[:2] != PYTHON.get(name, sys.version_info[:2]):
        pytest.skip(f"the header is for Python {PYTHON[name]}")
    commands, ranges = header(name)
    environment = {**os.environ, "PYTHONPATH": str(LAB)}
    for command in commands:
        script = ["-m", "sacristan"] if command[0] == "sacristan" else [str(LAB / command[0])]
        words = [sys.executable, *script, *command[1:], "seed=0"]
        done = run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "my_runs" / str(len(commands)) / "info.json").read_text())["test"]
    compared = {metric: measured[metric] for metric in ranges if metric in measured}
    assert compared
    for metric, value in compared.items():
        low, high = ranges[metric]
        margin = (high - low) / 10  # other numbers of threads add up in another order
        assert low - margin <= value <= high + margin, (metric, value)
