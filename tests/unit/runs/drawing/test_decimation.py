from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacristan.observers import Series
from sacristan.runs.drawing.curve import downsample, pixels

VALUES = st.lists(st.floats(-1e9, 1e9) | st.sampled_from([math.nan, math.inf, -math.inf]), min_size=1, max_size=290)


def columns(x, y, num_pixels, low, high, log_y):
    """Return least, greatest and whether there is a gap of each column of pixels."""
    found = {}
    for place, value in zip(x, y, strict=True):
        if low <= place <= high:
            column = min(num_pixels - 1, math.floor((place - low) / (high - low) * num_pixels)) if high > low else 0
            found.setdefault(column, []).append(
                value if math.isfinite(value) and (value > 0 or not log_y) else math.nan
            )
    return {
        column: (np.fmin.reduce(values), np.fmax.reduce(values), bool(np.isnan(values).any()))
        for column, values in found.items()
    }


@given(VALUES, st.integers(1, 20), st.floats(0, 1), st.floats(0, 1), st.booleans(), st.booleans())
def test_each_column_of_pixels_keeps_its_extremes_and_gaps(values, num_pixels, a, b, log_x, log_y):
    x, y = np.arange(len(values), dtype=float), np.array(values)
    low, high = np.floor(np.sort([a, b]) * len(values)) - 0.5  # columns between points
    if log_x:
        x, low, high = 10**x, 10**low, 10**high
    chosen = pixels(x, y, num_pixels, low, high, log_x=log_x, log_y=log_y)
    assert (np.diff(chosen) > 0).all()
    assert len(chosen) <= 3 * num_pixels + 4
    if log_x:
        x, low, high = np.log10(x), math.log10(low), math.log10(high)
    expected = columns(x, y, num_pixels, low, high, log_y)
    np.testing.assert_equal(columns(x[chosen], y[chosen], num_pixels, low, high, log_y), expected)


def test_points_beside_the_range_are_kept_so_that_lines_reach_the_edge():
    x = np.arange(1000.0)
    chosen = pixels(x, np.sin(x), 4, 99.5, 899.5)
    assert (chosen[0], chosen[-1]) == (99, 900)
    assert pixels(x, np.sin(x), 4, 400.2, 400.8).tolist() == [400, 401]


def test_positions_that_are_far_apart_have_as_many_points_as_those_close_together():
    # A million points in the first hundredth of the axis leave the rest of it as it is.
    x = np.concatenate([np.linspace(0, 1, 100_000), np.arange(2.0, 102.0)])
    chosen = pixels(x, np.sin(x), 101)
    assert set(range(100_000, 100_100)) <= set(chosen.tolist())


def test_a_million_points_become_a_few_thousand():
    y = np.random.default_rng(0).normal(size=1_000_000)
    y[[123_456, 654_321]] = 99, math.nan
    chosen = pixels(np.arange(1e6), y, 800)
    assert {0, 123_456, 654_321, 999_999} <= set(chosen.tolist())
    assert len(chosen) <= 2404


@given(VALUES, st.integers(4, 40))
def test_downsampling_keeps_both_ends_and_its_word(values, num_points):
    series = Series(np.arange(len(values)), np.array(values), np.arange(len(values)) / 100)
    found = downsample(series, num_points)
    assert len(found) == min(len(found), num_points, len(values))
    assert (found.steps[0], found.steps[-1]) == (0, len(values) - 1)
    np.testing.assert_equal(found.values, series.values[found.steps])


def test_a_stretch_with_a_gap_keeps_both_extremes():
    values = np.sin(np.arange(100.0))
    values[50] = math.nan
    found = downsample(Series(np.arange(100), values, np.zeros(100)), 5)
    assert found.steps.tolist() == sorted([0, 99, 50, int(np.nanargmin(values)), int(np.nanargmax(values))])


@pytest.mark.parametrize("num_pixels", [1, 10])
def test_no_points_give_none(num_pixels):
    assert pixels(np.empty(0), np.empty(0), num_pixels).tolist() == []
