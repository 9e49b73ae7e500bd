"""The points of an extended grid, the names of its parameters in Optuna, and points in another version's space."""

import optuna
import pytest

from sacristan.runs import SweepError
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study.optuna_extensions import expressed
from sacristan.runs.sweeps.study.points import grid_point, suggest


def extended(*versions, method="grid", **others):
    documents = [{"method": method, "parameters": parameters, **others} for parameters in versions]
    return read_spec(documents[-1], documents[:-1])


def values(**lists):
    return {name: {"values": some} for name, some in lists.items()}


def points_of(spec, seed=0):
    return [grid_point(spec, number, seed) for number in range(spec.size)]


@pytest.mark.parametrize("order", ["listed", "random"])
@pytest.mark.parametrize(
    "versions",
    [
        [values(a=[1, 2], b=[1, 2]), values(a=[1, 2, 3], b=[1, 2])],
        [values(a=[1, 2], b=[1, 2]), values(a=[0, 1, 2], b=[0, 1, 2, 3]), values(a=[2, 9], b=[2, 9])],
        [values(a=[1, 2]), values(a=[1, 2], b=[True, False])],  # another parameter: all points are new
        [{"a": {"min": 1, "max": 4}}, {"a": {"min": 0, "max": 6}}],
        [values(a=["x", "y"]), {**values(a=["x", "z"]), "b": {"values": [1, 2], "when": {"a": "z"}}}],
        [values(a=[1, 2], b=[1]), values(b=[1], a=[3])],
    ],
)
def test_extended_grid_keeps_its_numbers_and_adds_each_new_point_once(versions, order):
    method = {"name": "grid", "order": order}
    spec = extended(*versions, method=method)
    points = points_of(spec)
    each = [points_of(read_spec({"method": method, "parameters": one})) for one in versions]
    assert points[: len(each[0])] == each[0]
    assert len({repr(point) for point in points}) == len(points)
    assert {repr(point) for point in points} == {repr(point) for one in each for point in one}


def test_equal_numbers_are_no_new_points():
    assert extended(values(a=[1, 2]), values(a=[1.0, 2.0, True])).size == 3


def test_extension_of_a_large_grid_is_not_written_out():
    large = {name: {"min": 1, "max": 1000} for name in "abcd"}
    wider = {**large, "d": {"min": 1, "max": 1001}}
    spec = extended(large, wider)
    assert spec.size == 1000**3 * 1001
    assert grid_point(spec, 10**12)["d"] == 1001


def test_grid_with_conditions_in_one_version_is_bounded_in_all():
    large = {name: {"min": 1, "max": 1000} for name in "abc"}
    conditional = {**values(a=[1, 2]), "b": {"values": [1], "when": {"a": 1}}}
    with pytest.raises(SweepError, match="got a grid of 1000000000 combinations with conditions"):
        extended(large, conditional)


def test_other_choices_kinds_and_scales_have_another_name_in_optuna():
    spec = extended(
        {"a": {"values": [1, 2]}, "b": {"min": 0.1, "max": 1.0}, "c": {"min": 1, "max": 2}},
        {
            "a": {"values": [1, 2, 3]},
            "b": {"min": 0.1, "max": 2.0},
            "c": {"distribution": "log_uniform_values", "min": 1, "max": 2},
        },
        {"a": {"values": [1, 2]}, "b": {"mu": 0.0, "distribution": "normal"}, "c": {"min": 1, "max": 9}},
        method="random",
    )
    assert spec.at(1).labels == {"a": "a", "b": "b", "c": "c"}
    assert spec.at(2).labels == {"a": "a (2)", "b": "b", "c": "c (2)"}
    assert spec.labels == {"a": "a", "b": "b (2)", "c": "c"}


@pytest.mark.parametrize(
    "law",
    [
        {"values": [1, 2, "x", [3]]},
        {"values": ["x", "y"], "probabilities": [0.25, 0.75]},
        {"min": 1, "max": 9},
        {"min": 0.5, "max": 1.5},
        {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1},
        {"distribution": "normal", "mu": 3.0, "sigma": 2.0},
        {"distribution": "q_log_uniform_values", "min": 8, "max": 512, "q": 8},
        {"distribution": "beta", "a": 2, "b": 3},
    ],
)
def test_point_is_expressed_as_a_sampler_would_have_suggested_it(law):
    spec = read_spec({"method": "random", "parameters": {"p": law}})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(1))
    for _ in range(20):
        trial = study.ask()
        point = suggest(spec, trial)
        found = expressed(spec, point)
        (name, (value, distribution)) = next(iter(found.items()))
        assert distribution == trial.distributions[name]
        seen = optuna.trial.create_trial(value=0.0, params={name: value}, distributions={name: distribution})
        assert (
            suggest(spec, seen)["p"] == pytest.approx(point["p"])
            if "p" in point and isinstance(point["p"], float)
            else suggest(spec, seen) == point
        )


@pytest.mark.parametrize(
    ("law", "value"),
    [
        ({"values": [1, 2]}, 3),
        ({"values": [1, 2]}, True),
        ({"values": ["x", "y"], "probabilities": [0.5, 0.5]}, "z"),
        ({"min": 1, "max": 9}, 10),
        ({"min": 1, "max": 9}, 2.5),
        ({"min": 0.5, "max": 1.5}, 0.4),
        ({"min": 0.5, "max": 1.5}, "x"),
        ({"distribution": "q_uniform", "min": 0.0, "max": 1.0, "q": 0.25}, 0.3),
        ({"distribution": "beta"}, 1.5),
    ],
)
def test_point_beyond_the_space_is_not_expressed(law, value):
    spec = read_spec({"method": "random", "parameters": {"p": law, "other": {"min": 0, "max": 1}}})
    assert expressed(spec, {"p": value, "other": 1}) is None
    assert expressed(spec, {"other": 1}) is None
