"""The points of a grid are wandb's, in wandb's order, and each comes once."""

import optuna
import pytest

from sacristan.runs import SweepError
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study.points import grid_point, suggest
from sacristan.runs.sweeps.study.samplers import make_sampler

NUM = 7


def grid_of(parameters, **others):
    return read_spec({"method": "grid", "parameters": parameters, **others})


def points_of(spec, seed=0):
    return [grid_point(spec, number, seed) for number in range(spec.size)]


def rounded(points):
    return [{name: round(value, 9) if type(value) is float else value for name, value in one.items()} for one in points]


@pytest.mark.parametrize("position", range(NUM))
def test_points_are_those_of_wandb_in_their_order(position, script, reference):
    theirs = reference["grids"][position]
    assert len(reference["grids"]) == NUM
    assert repr(rounded(points_of(grid_of(script.GRIDS[position])))) == repr(
        [dict(sorted(p.items())) for p in rounded(theirs)]
    )


@pytest.mark.parametrize("position", range(NUM))
def test_points_are_those_of_the_installed_package(position, live):
    theirs = live.grid(live.GRIDS[position])
    assert rounded(points_of(grid_of(live.GRIDS[position]))) == rounded(theirs)


@pytest.mark.parametrize("position", range(NUM))
def test_study_gets_the_point_of_the_grid(position, script):
    spec = grid_of(script.GRIDS[position])
    study = optuna.create_study()
    for number in range(spec.size):
        study.sampler = make_sampler(spec, 0, number)
        assert repr(suggest(spec, study.ask())) == repr(grid_point(spec, number))


def test_what_is_not_active_makes_no_points():
    spec = grid_of(
        {
            "lr": {"values": [1, 2]},
            "name": {"values": ["sgd", "adam"]},
            "momentum": {"values": [0.5, 0.9], "when": {"name": "sgd"}},
            "nesterov": {"values": [True, False], "when": {"momentum": 0.9}},
        }
    )
    points = points_of(spec)
    assert spec.size == len(points) == 2 * (1 + 1 + 2)
    assert [point for point in points if point["name"] == "adam"] == [
        {"lr": 1, "name": "adam"},
        {"lr": 2, "name": "adam"},
    ]
    assert {"lr": 2, "momentum": 0.9, "name": "sgd", "nesterov": False} in points
    study = optuna.create_study()
    for number in range(spec.size):
        study.sampler = make_sampler(spec, 0, number)
        assert suggest(spec, study.ask()) == points[number]


def test_large_grid_is_not_written_out():
    spec = grid_of({name: {"min": 0, "max": 10**6 - 1} for name in "abc"})
    assert spec.size == 10**18
    point = {"a": 123_456, "b": 789_012, "c": 345_678}
    assert grid_point(spec, 123_456_789_012_345_678) == point
    trial = optuna.create_study(sampler=make_sampler(spec, 0, 123_456_789_012_345_678)).ask()
    assert suggest(spec, trial) == point
    assert trial.distributions["a"] == optuna.distributions.IntDistribution(0, 10**6 - 1)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000])
def test_random_order_has_each_point_once(size):
    spec = grid_of(
        {"x": {"min": 0, "max": size - 1} if size > 1 else {"value": 0}}, method={"name": "grid", "order": "random"}
    )
    orders = [[point["x"] for point in points_of(spec, seed)] for seed in range(3)]
    assert [sorted(order) for order in orders] == [list(range(size))] * 3
    assert points_of(spec, 1) == points_of(spec, 1)
    if size > 5:
        assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("number", [-1, 2])
def test_point_that_is_not_there_is_refused(number):
    with pytest.raises(SweepError, match=f"got the point {number}, expected one of the 2 points of the grid"):
        grid_point(grid_of({"a": {"values": [1, 2]}}), number)
