"""Expressions of metrics."""

from __future__ import annotations

import math
import random
import warnings
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacristan.observers import Series
from sacristan.runs import PlotError
from sacristan.runs.comparison.curves import Quantity, joined_series, mean_curve, smooth
from sacristan.runs.drawing.curve import Curve, curve_of, thin

METRICS = ("val/loss", "train/loss", "top-1 acc", "lr")


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_positions_of_each_axis():
    series = Series(np.array([3, 5]), np.array([0.5, 0.25]), np.array([1.5, 2.0]))
    found = {
        "step": curve_of(series),
        "epoch": curve_of(series, x="epoch", others=np.array([0.3, 0.5])),
        "time": curve_of(series, x="time"),
        "wall": curve_of(series, x="wall", start_s=1e9),
    }
    expected = {"step": [3, 5], "epoch": [0.3, 0.5], "time": [1.5, 2], "wall": [1e9 + 1.5, 1e9 + 2]}
    assert {x: one.x.tolist() for x, one in found.items()} == expected


@pytest.mark.parametrize(("on_wall", "times"), [(False, [-1.0, 0.0, 3.0]), (True, [-99.0, -98.0, 3.0])])
def test_points_of_a_parent_end_at_the_start_or_keep_their_distance_on_the_clock(on_wall, times):
    parent, own = (SimpleNamespace(start_time=datetime.fromtimestamp(start, UTC)) for start in (1000, 1100))
    earlier = Series(np.array([0, 1]), np.array([0.5, 0.25]), np.array([1.0, 2.0]))
    later = Series(np.array([2]), np.array([0.125]), np.array([3.0]))
    found = joined_series([(parent, earlier), (own, later)], on_wall=on_wall)
    assert (found.steps.tolist(), found.values.tolist()) == ([0, 1, 2], [0.5, 0.25, 0.125])
    assert found.times.tolist() == times


def test_a_range_of_a_curve_is_drawn_to_its_edges():
    found = thin(curve(*range(1000)), 10, 100, 899)
    assert (found.x[0], found.x[-1]) == (99, 900)
    assert len(found.x) <= 12


def curve(*y, x=None, label=""):
    return Curve(label, np.arange(len(y), dtype=float) if x is None else np.array(x, float), np.array(y, float))


def test_smoothing_by_hand():
    # With 0.5: 1; (0.25 * 1 + 0.5 * 3) / 0.75; (0.125 * 1 + 0.25 * 3 + 0.5 * 5) / 0.875
    found = smooth(curve(1, 3, 5), 0.5)
    np.testing.assert_allclose(found.y, [1, 1.75 / 0.75, 3.375 / 0.875])
    np.testing.assert_array_equal(found.raw, [1, 3, 5])


def test_smoothing_is_the_loop_of_tensorboard():
    values, weight = np.random.default_rng(0).normal(size=200), 0.6
    last, expected = 0.0, []
    for count, value in enumerate(values, 1):
        last = last * weight + (1 - weight) * value
        expected.append(last / (1 - weight**count))
    np.testing.assert_allclose(smooth(curve(*values), weight).y, expected)


def test_smoothing_passes_over_gaps():
    found = smooth(curve(1, math.nan, 3, math.inf, 5), 0.5)
    np.testing.assert_allclose(found.y, [1, math.nan, 1.75 / 0.75, math.inf, 3.375 / 0.875])


def test_smoothing_of_nothing_changes_nothing():
    given_curve = curve(1, 3)
    assert smooth(given_curve, 0) is given_curve
    np.testing.assert_allclose(smooth(curve(0.1, 0.1, 0.1), 0.99).y, 0.1)


@pytest.mark.parametrize("weight", [-0.1, 1, 1.5, math.nan])
def test_smoothing_beyond_its_range_refused(weight):
    with pytest.raises(PlotError, match=f"smoothing: got {weight}, expected a number from 0 to below 1"):
        smooth(curve(1), weight)


def test_resumed_run_counts_with_its_last_values():
    series = Series(np.array([0, 1, 2, 1, 2, 3]), np.array([0.0, 10, 20, 1, 2, 3]), np.arange(6.0))
    found = curve_of(series)
    assert (found.x.tolist(), found.y.tolist()) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert found.left_out == {"whose step was logged again": 2}
    assert curve_of(series, x="time").y.tolist() == [0, 10, 20, 1, 2, 3]
    with pytest.raises(PlotError, match="x: got 'hour', expected one of step, epoch, time, wall"):
        curve_of(series, x="hour")


def test_several_values_of_a_step_are_all_drawn_and_a_mean_takes_their_mean():
    found = curve_of(Series(np.array([0, 0, 1, 1, 2]), np.array([0.0, 2, 3, math.nan, 4]), np.zeros(5)))
    assert (found.x.tolist(), found.left_out) == ([0, 0, 1, 1, 2], {})
    np.testing.assert_array_equal(found.y, [0, 2, 3, math.nan, 4])
    assert mean_curve([found]).y.tolist() == [1, 3, 4]


def test_steps_beyond_the_integers_of_floats_stay_apart():
    steps = 2**53 + np.arange(4)
    found = curve_of(Series(steps, np.arange(4.0), np.zeros(4)))
    assert (found.x.tolist(), found.y.tolist()) == (steps.tolist(), [0, 1, 2, 3])


def test_steps_and_times_that_are_no_numbers_are_left_out_and_counted():
    series = Series(np.array([0.5, math.nan, 0.1]), np.array([1.0, 2, 3]), np.full(3, math.nan))
    found = curve_of(series)
    assert (found.x.tolist(), found.y.tolist()) == ([0.1, 0.5], [3, 1])
    assert found.left_out == {"without a step": 1}
    assert curve_of(series, x="time").left_out == {"without a time": 3}


def test_mean_at_equal_steps_and_its_interval():
    import scipy.stats

    rows = np.array([[1.0, 2, 3], [2, 4, 6], [4, 4, 5]])
    found = mean_curve([curve(*row) for row in rows], "m")
    np.testing.assert_allclose(found.y, rows.mean(0))
    assert found.counts.tolist() == [3, 3, 3]
    for position in range(3):
        low, high = scipy.stats.t.interval(0.95, 2, rows[:, position].mean(), scipy.stats.sem(rows[:, position]))
        assert (found.low[position], found.high[position]) == (pytest.approx(low), pytest.approx(high))


def test_mean_at_other_steps_lies_between_points_and_never_beyond():
    found = mean_curve([curve(0, 4, x=[0, 4]), curve(1, 1, 1, x=[2, 4, 6])], band="range")
    assert found.x.tolist() == [0, 2, 4, 6]
    np.testing.assert_allclose(found.y, [0, (2 + 1) / 2, (4 + 1) / 2, 1])
    assert found.counts.tolist() == [1, 2, 2, 1]
    np.testing.assert_allclose(found.low, [0, 1, 1, 1])
    np.testing.assert_allclose(found.high, [0, 2, 4, 1])


def test_gap_of_one_run_is_not_bridged():
    found = mean_curve([curve(1, math.nan, 3), curve(5, 5, 5), curve(7, math.inf, 9)])
    np.testing.assert_allclose(found.y, [13 / 3, 5, 17 / 3])
    assert found.counts.tolist() == [3, 1, 3]
    assert np.isnan(found.low).tolist() == [False, True, False]
    fine = mean_curve([curve(1, math.nan, 3), curve(5, 5, 5, 5, 5, x=[0, 0.5, 1, 1.5, 2])])
    assert fine.counts.tolist() == [2, 1, 1, 1, 2]


def test_where_no_run_is_there_is_a_gap():
    found = mean_curve([curve(1, math.nan, 3), curve(1, math.nan, 3)], band="range")
    np.testing.assert_array_equal(found.y, [1, math.nan, 3])
    assert found.counts.tolist() == [2, 0, 2]


def test_mean_of_one_run_has_no_interval():
    found = mean_curve([curve(1, 2)])
    assert np.isnan(found.low).all()
    assert mean_curve([curve(1, 2)], band="none").low is None
    assert mean_curve([curve(), curve()]).y.tolist() == []
    with pytest.raises(PlotError, match="band: got 'std', expected one of interval, range, none"):
        mean_curve([curve(1)], band="std")


def test_mean_of_smoothed_curves_keeps_what_was_before():
    found = mean_curve([smooth(curve(1, 3), 0.5), smooth(curve(3, 5), 0.5)])
    np.testing.assert_allclose(found.raw, [2, 4])
    assert found.y[1] < 4


def test_many_steps_are_bounded(monkeypatch):
    monkeypatch.setattr("sacristan.runs.comparison.curves._MAX_CELLS", 4000)
    found = mean_curve([curve(*range(5000)), curve(*range(5000), x=np.arange(5000) + 0.5)])
    assert 1000 <= len(found.x) <= 2000
    assert (found.x[0], found.x[-1]) == (0, 4999.5)


@given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=6), min_size=1, max_size=5), st.randoms())
def test_order_of_runs_changes_no_mean(rows, shuffler):
    curves = [curve(*row) for row in rows]
    before = mean_curve(curves, band="range")
    shuffled = curves[:]
    random.Random(shuffler.random()).shuffle(shuffled)
    after = mean_curve(shuffled, band="range")
    np.testing.assert_allclose(before.y, after.y, atol=1e-9)
    np.testing.assert_array_equal(before.low, after.low)
    assert (before.y >= before.low - 1e-9).all()
    assert (before.y <= before.high + 1e-9).all()


def test_thin_keeps_spikes_of_each_line_also_beside_infinities():
    flat = np.zeros(100_000)
    raw, high = flat.copy(), flat.copy()
    raw[50_001], high[60_001] = 9, 8
    raw[[50_000, 50_002]] = -math.inf, math.inf
    found = thin(Curve("c", np.arange(100_000.0), flat, flat, high, raw=raw), 500)
    assert 9 in found.raw
    assert 8 in found.high
    assert len(found.x) <= 500


def test_thin_has_points_for_each_decade_of_a_logarithmic_axis():
    x = np.arange(1_000_000)
    found = thin(Curve("c", x, np.sin(x)), 500, log_x=True)
    decades = np.floor(np.log10(found.x)).astype(int)
    assert [int((decades == decade).sum()) >= 9 for decade in range(6)] == [True] * 6
    y = np.where(x % 2, -1.0, x % 1000 + 1)
    assert 1 in thin(Curve("c", x, y), 500, log_y=True).y


def test_thin_keeps_spikes_gaps_and_bands_together():
    y = np.zeros(100_000)
    y[50_001], y[70_003] = 9, math.nan
    found = thin(Curve("c", np.arange(100_000.0), y, y - 1, y + 1, np.arange(100_000), y), 500)
    assert len(found.x) <= 500
    assert 9 in found.y
    assert np.isnan(found.y).sum() == 1
    np.testing.assert_array_equal(found.high, found.y + 1)
    np.testing.assert_array_equal(found.counts, found.x)
    assert (found.x[0], found.x[-1], found.label) == (0, 99_999, "c")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("val/loss - train/loss", 6.0),
        ("val/loss / train/loss", 4.0),
        ("1 + 2 * train/loss ** 2", 9.0),
        ("-train/loss ** 2", -4.0),
        ("2 ** -1 * val/loss", 4.0),
        ("train/loss ** 3 ** 2", 512.0),
        ("(val/loss - 1) * 2", 14.0),
        ("`top-1 acc` * 100", 50.0),
        ("max(train/loss, sqrt(val/loss * 2))", 4.0),
        ("--train/loss", 2.0),
        ("val/loss - train/loss - 1", 5.0),
        ("1e1 + lr", 10.25),
    ],
)
def test_expression_has_its_value(text, expected):
    quantity = Quantity.of(text, METRICS)
    values = {"val/loss": 8.0, "train/loss": 2.0, "top-1 acc": 0.5, "lr": 0.25}
    assert float(quantity.formula({name: np.array(value) for name, value in values.items()})) == expected


@pytest.mark.parametrize("text", [*METRICS, "`val/loss`", "nothing"])
def test_metric_is_no_expression(text):
    quantity = Quantity.of(text, METRICS)
    assert quantity.names == ((text,) if text != "`val/loss`" else ("val/loss",))
    assert quantity.formula is None or quantity.names == ("val/loss",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("val/loss -", "it ends too early"),
        ("val/loss train/loss", "expected an operator before 'train/loss'"),
        ("(val/loss", "a parenthesis is not closed"),
        ("max(lr)", "max takes 2 arguments, got 1"),
        ("lr; lr", "cannot read '; lr'"),
        ("* lr", r"expected a metric instead of '\*'"),
        ("(" * 30 + "lr" + ")" * 30, "nested more than 20 deep"),
        ("-" * 499 + ")", r"expected a metric instead of '\)'"),
        ("lr" + "**lr" * 120 + "**", "it ends too early"),
        ("lr + " * 200 + "lr", "at most 500 characters"),
        ("", "at most 500 characters"),
        ("__import__('os').system('x')", "cannot read"),
    ],
)
def test_malformed_expression_is_rejected(text, problem):
    with pytest.raises(PlotError, match=problem):
        Quantity.of(text, METRICS)


def test_values_are_those_of_the_steps_that_all_metrics_have(monkeypatch):
    parts = {
        "a": Series(np.array([0, 1, 1, 2, 4]), np.array([1.0, 9.0, 2.0, 3.0, 5.0]), np.arange(5.0)),
        "b": Series(np.array([4, 1, 3]), np.array([0.0, 10.0, 7.0]), np.arange(3.0)),
    }
    monkeypatch.setattr(
        "sacristan.runs.comparison.curves.each_series", lambda runs, name: ((run, parts[name]) for run in runs)
    )
    [(run, series)] = Quantity.of("a / b", parts).each_series(["run"])
    assert run == "run"
    assert series.steps.tolist() == [1, 4]
    assert series.values.tolist() == [0.2, np.inf]
    assert series.times.tolist() == [2.0, 4.0]
