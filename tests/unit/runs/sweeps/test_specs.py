"""Keys of a spec, wandb's and our own, as `Spec` reads them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sacristan import runs
from sacristan.runs import SweepError
from sacristan.runs.sweeps.spec import read_over, read_spec
from sacristan.runs.sweeps.spec.distributions import Choice, Constant, Integers, Reals
from sacristan.runs.sweeps.spec.search import Objective, read_constraint, violations

GOOD = {"method": "random", "parameters": {"lr": {"min": 0.0, "max": 1.0}}}

FULL = """
method: {name: tpe, n_startup_trials: 5}
metrics:
  - {name: val/accuracy, goal: maximize, target: 0.9}
  - name: time
parameters:
  optimizer.name: {values: [sgd, adam]}
  optimizer:
    parameters:
      lr: {distribution: log_uniform_values, min: 1e-5, max: 1e-1}
      options:
        when: {optimizer.name: sgd}
        parameters:
          momentum: {min: 0.0, max: 0.99}
          nesterov: {values: [true, false], when: {model: [mlp, cnn]}}
  model: {values: [mlp, cnn, vit]}
constraints: [time < 10, "val/loss >= -1e3"]
run_cap: 100
seeds: 3
budget: 1h30m
name: digits
description: What works.
"""


def test_spec_has_what_the_file_says(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(FULL)
    spec = read_spec(path)
    assert (spec.method, spec.method_options) == ("tpe", {"n_startup_trials": 5})
    assert spec.objectives == (Objective("val/accuracy", "maximize", 0.9), Objective("time"))
    assert {name: parameter.distribution for name, parameter in spec.parameters.items()} == {
        "model": Choice(("mlp", "cnn", "vit")),
        "optimizer.lr": Reals("log_uniform", 1e-5, 0.1),
        "optimizer.options.momentum": Reals("uniform", 0.0, 0.99),
        "optimizer.options.nesterov": Choice((True, False)),
        "optimizer.name": Choice(("sgd", "adam")),
    }
    assert list(spec.parameters) == sorted(spec.parameters, key=lambda name: name.replace("optimizer.name", "p"))
    assert spec.parameters["optimizer.options.nesterov"].when == {"optimizer.name": ("sgd",), "model": ("mlp", "cnn")}
    assert [str(constraint) for constraint in spec.constraints] == ["time < 10", "val/loss >= -1000"]
    assert (spec.run_cap, spec.seeds, spec.budget_s, spec.size) == (100, 3, 5400.0, None)
    assert (spec.name, spec.description, spec.program, spec.notes) == ("digits", "What works.", None, ())


def test_document_is_json_and_reads_as_the_same(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(FULL)
    spec = read_spec(path)
    (tmp_path / "again.json").write_text(json.dumps(spec.document))
    assert read_spec(json.loads(json.dumps(spec.document))) == spec == read_spec(str(tmp_path / "again.json"))


def test_document_is_a_copy():
    given = {**GOOD, "parameters": {"lr": {"values": [1, 2]}}}
    spec = read_spec(given)
    given["parameters"]["lr"]["values"].append(3)
    assert spec.document["parameters"]["lr"]["values"] == [1, 2]


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [
        ("2h", 7200),
        ("90m", 5400),
        ("1d12h", 129600),
        ("1.5h", 5400),
        ("1h 30m", 5400),
        (60, 60),
        (0.5, 0.5),
        ("45s", 45),
    ],
)
def test_budget_is_in_seconds(budget, seconds):
    assert read_spec({**GOOD, "budget": budget}).budget_s == seconds


@pytest.mark.parametrize(
    ("goals", "values", "reached"),
    [
        ([("minimize", 0.1)], [0.1], True),
        ([("minimize", 0.1)], [0.2], False),
        ([("minimize", 0.1)], [float("nan")], False),
        ([("maximize", 0.9)], [0.95], True),
        ([("maximize", 0.9)], [0.5], False),
        ([("minimize", None)], [0.0], False),
        ([("minimize", 0.1), ("maximize", None)], [0.0, 0.0], True),
        ([("minimize", 0.1), ("maximize", 1)], [0.0, 0.0], False),
    ],
)
def test_target_is_reached(goals, values, reached):
    metrics = [
        {"name": f"m{place}", "goal": goal, **({} if target is None else {"target": target})}
        for place, (goal, target) in enumerate(goals)
    ]
    assert read_spec({**GOOD, "metrics": metrics}).is_reached(values) is reached


# wandb's keys that change nothing


@pytest.mark.parametrize(
    ("others", "note"),
    [
        ({"project": "digits"}, "project is not used: records stay in their store"),
        ({"entity": "team"}, "entity is not used: records stay in their store"),
        ({"controller": {"type": "local"}}, "controller is not used: agents here need none"),
        (
            {"metric": {"name": "x", "impute": "best"}},
            "metric.impute is not used: failed runs do not guide the search",
        ),
        ({"constraints": ["time < 1"]}, "constraints do not guide the method random: they only say which points count"),
    ],
)
def test_what_changes_nothing_is_noted(others, note):
    assert read_spec({**GOOD, **others}).notes == (note,)


def test_what_says_nothing_is_read_in_silence():
    assert read_spec({**GOOD, "apiVersion": "1", "kind": "sweep", "name": 2024}).notes == ()


def test_command_that_starts_the_script_is_read_and_done_with():
    words = [
        "${env}",
        "/usr/bin/env",
        "python3",
        "${interpreter}",
        "${program}",
        "train.py",
        "with",
        "${args_no_hyphens}",
    ]
    spec = read_spec({**GOOD, "program": "train.py", "command": [*words, "--lr=${lr}", "${args}", "${args_json}"]})
    assert (list(spec.parameters), spec.notes, spec.program) == (["lr"], (), "train.py")


def test_fixed_settings_of_the_command_are_parameters():
    words = ["python", "${program}", "with", "epochs=3", "--model.name=mlp", "--amp=False", "sizes=[1, 2]", "lr0=1e-3"]
    spec = read_spec({**GOOD, "command": [*words, "${args}"]})
    fixed = {name: parameter.distribution for name, parameter in spec.parameters.items() if name != "lr"}
    assert fixed == {
        "epochs": Constant(3),
        "model.name": Constant("mlp"),
        "amp": Constant(False),
        "sizes": Constant([1, 2]),
        "lr0": Constant(1e-3),
    }


def test_macro_of_no_parameter_is_noted():
    spec = read_spec({**GOOD, "command": ["python", "${program}", "--batch_size=${batch_size}"]})
    assert spec.notes == (
        "command[2]: --batch_size=${batch_size} names no parameter of the sweep, so runs keep the default",
    )


# A search without a file


def test_over_is_a_grid_of_lists():
    spec = read_over(
        {"optimizer.lr": [1e-3, 1e-2], "epochs": 3, "model": {"hidden": [8, 16]}, "depth": {"min": 1, "max": 2}}
    )
    assert (spec.method, spec.size) == ("grid", 8)
    assert {name: parameter.distribution for name, parameter in spec.parameters.items()} == {
        "depth": Integers(1, 2),
        "epochs": Constant(3),
        "model.hidden": Choice((8, 16)),
        "optimizer.lr": Choice((1e-3, 1e-2)),
    }


def test_over_takes_the_rest_of_a_spec():
    others = {"method": "bayes", "metric": {"name": "val/loss"}, "run_cap": 5, "budget": None}
    spec = read_over({"lr": {"distribution": "log_uniform_values", "min": 1e-5, "max": 0.1}}, **others)
    assert (spec.method, spec.run_cap, spec.budget_s) == ("bayes", 5, None)
    assert spec.parameters["lr"].distribution == Reals("log_uniform", 1e-5, 0.1)


# Constraints


@pytest.mark.parametrize(
    ("text", "value", "broken"),
    [
        ("time < 10", 9.9, False),
        ("time < 10", 10, True),
        ("time <= 10", 10, False),
        ("val/accuracy >= 0.5", 0.5, False),
        ("val/accuracy > 0.5", 0.5, True),
        ("val/accuracy>0.5", 0.6, False),
        ("gradient norm <= 1e3", 1e4, True),
    ],
)
def test_constraint_is_broken_above_0(text, value, broken):
    constraints = [read_constraint("constraints[0]", text)]
    found = violations(constraints, {constraints[0].metric: value, "other": 1})
    assert list(found) == [str(constraints[0])]
    assert (found[str(constraints[0])] > 0) is broken


@pytest.mark.parametrize(("values", "said"), [({}, "nothing"), ({"time": float("nan")}, "NaN")])
def test_constraint_on_what_was_not_logged_is_refused(values, said):
    with pytest.raises(SweepError, match=f"constraint time < 10: the run logged {said} as time; log a number"):
        violations([read_constraint("constraints[0]", "time < 10")], values)


def test_reading_loads_no_optuna_and_no_numpy():
    script = "import sys\nfrom sacristan.runs.sweeps.spec import read_spec\n"
    script += f"read_spec({GOOD!r})\nprint([name for name in ('optuna', 'numpy', 'scipy') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(runs.__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
