"""Points: what is suggested is what the spec says, and what is checked beforehand covers it."""

import json

import optuna
import pytest

from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study.points import representative, suggest

CONDITIONAL = {
    "model": {"values": ["mlp", "cnn", "vit"]},
    "hidden": {"min": 8, "max": 64, "when": {"model": ["mlp", "cnn"]}},
    "kernel": {"values": [3, 5, 7], "when": {"model": "cnn"}},
    "stride": {"values": [1, 2], "when": {"kernel": [5, 7]}},
    "lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1},
    "seed": {"value": 3},
}


def spec_of(parameters, method="random"):
    return read_spec({"method": method, "parameters": parameters, "metric": {"name": "loss"}})


def ask(spec, sampler=None):
    return suggest(spec, optuna.create_study(sampler=sampler or optuna.samplers.RandomSampler(0)).ask())


def test_suggestion_is_under_the_name_and_in_the_terms_of_the_study():
    parameters = {
        "a": {"values": [16, 32]},
        "b": {"min": 1, "max": 3},
        "c": {"min": 0.0, "max": 1.0},
        "d": {"distribution": "normal"},
        "e": {"value": 1},
        "f": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.5},
        "g": {"values": [[1, 2], {"k": 3}]},
    }
    spec = spec_of(parameters)
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(0)).ask()
    point = suggest(spec, trial)
    assert list(point) == list("abcdefg")
    assert list(trial.params) == ["a", "b", "c", "d (quantile)", "f (quantile)", "g"]
    assert point["g"] == json.loads(trial.params["g"])
    assert (point["a"], point["e"]) == (trial.params["a"], 1)


@pytest.mark.parametrize(
    "values",
    [[True, 1, 1.0, "1"], [None, "null"], [[1], [1.0]], ["a", "a"], [0, False, -0.0, [], {}]],
)
def test_values_that_python_takes_for_equal_stay_apart(values):
    spec = spec_of({"x": {"values": values}})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    seen = {repr(suggest(spec, study.ask())["x"]) for _ in range(60)}
    assert seen == {repr(value) for value in values}


def test_parameter_is_set_when_its_condition_holds():
    spec = spec_of(CONDITIONAL)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    for _ in range(100):
        point = suggest(spec, study.ask())
        assert ("hidden" in point) == (point["model"] in ("mlp", "cnn"))
        assert ("kernel" in point) == (point["model"] == "cnn")
        assert ("stride" in point) == (point.get("kernel") in (5, 7))
        assert point["seed"] == 3


def test_representatives_have_every_value_and_both_ends():
    points = representative(spec_of(CONDITIONAL))
    seen = {name: {point[name] for point in points if name in point} for name in CONDITIONAL}
    assert seen == {
        "model": {"mlp", "cnn", "vit"},
        "hidden": {8, 64},
        "kernel": {3, 5, 7},
        "stride": {1, 2},
        "lr": {1e-4, 1e-1},
        "seed": {3},
    }
    assert len(points) <= 7
    for point in points:
        assert ("kernel" in point) == (point["model"] == "cnn")
        assert ("stride" in point) == (point.get("kernel") in (5, 7))


def test_representatives_of_laws_without_ends_are_what_is_likely():
    points = representative(spec_of({"x": {"distribution": "normal"}, "y": {"distribution": "q_normal", "mu": 10}}))
    assert [round(point["x"], 2) for point in points] == [-2.33, 2.33]
    assert [point["y"] for point in points] == [8.0, 12.0]


def test_representatives_tell_true_from_1():
    points = representative(spec_of({"x": {"values": [True, 1, 0]}, "y": {"values": [5, 6], "when": {"x": 1}}}))
    assert {repr(point["x"]) for point in points} == {"True", "1", "0"}
    assert {point["y"] for point in points if "y" in point} == {5, 6}
    assert all(("y" in point) == (point["x"] is not True and point["x"] == 1) for point in points)


def test_representatives_end_where_a_condition_never_holds():
    parameters = {
        "a": {"values": [1, 2]},
        "b": {"values": [1, 2], "when": {"a": 1}},
        "c": {"values": [3, 4], "when": {"a": 2, "b": 1}},
    }
    points = representative(spec_of(parameters))
    assert {json.dumps(point, sort_keys=True) for point in points} >= {
        '{"a": 1, "b": 1}',
        '{"a": 1, "b": 2}',
        '{"a": 2}',
    }
    assert all("c" not in point for point in points)
