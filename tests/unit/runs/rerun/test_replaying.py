from __future__ import annotations

import math

import numpy as np
import pytest

from sacristan.observers import Series
from sacristan.runs import LaunchError
from sacristan.runs.rerun.replaying import compare_points


def series(steps, values):
    return Series(np.array(steps), np.array(values, float), np.zeros(len(steps)))


RECORDED = {
    "loss": series([1, 2, 3, 4, 5], [5, 4, math.nan, 2, 1]),
    "lr": series([2, 4], [0.1, 0.2]),
    "apart": series([1], [9.0]),
}


def compared(**replayed):
    return compare_points(RECORDED, {**RECORDED, **replayed}, 2, "step-2.pt", 4)


def test_same_points_are_identical_and_counted():
    found = compared(loss=series([3, 4, 5], [math.nan, 2, 7]))
    assert (found.first, found.num_points, found.num_metrics) == (None, 3, 2)


@pytest.mark.parametrize(
    ("replayed", "first"),
    [
        ({"loss": series([3, 4], [math.nan, math.nextafter(2, 3)])}, ("loss", 4, 2.0, math.nextafter(2, 3))),
        ({"loss": series([3, 4], [math.nan, 1]), "lr": series([4], [0.3])}, ("loss", 4, 2.0, 1.0)),
        ({"loss": series([3], [math.nan])}, ("loss", 4, 2.0, None)),
        ({"lr": series([3], [0.2])}, ("lr", 4, 0.2, None)),
    ],
)
def test_first_point_that_is_another_one_is_named(replayed, first):
    assert compared(**replayed).first == first


def test_metric_that_is_not_replayed_at_all_differs():
    recorded = {**RECORDED, "gone": series([3], [1.0])}
    assert compare_points(recorded, RECORDED, 2, "step-2.pt", 4).first == ("gone", 3, 1.0, None)


def test_no_points_in_common_raise():
    with pytest.raises(LaunchError, match="there are no points of steps 6 to 9 to compare"):
        compare_points(RECORDED, RECORDED, 5, "", 9)
