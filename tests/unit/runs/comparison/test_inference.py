from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacristan.runs.comparison.inference import (
    correction,
    holm,
    mean_interval,
    num_to_tell_apart,
    paired_test,
    sample,
    share_interval,
    welch_test,
)

values = st.lists(st.floats(-1e6, 1e6).map(lambda value: round(value, 3)), min_size=2, max_size=12)


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_sample_by_hand():
    # mean 3, squares 4 + 1 + 0 + 1 + 4 over 4; t(4, 0.975) = 2.776 in every table
    found = sample(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert (found.n, found.mean, found.std) == (5, 3.0, pytest.approx(math.sqrt(2.5)))
    assert found.high - found.mean == pytest.approx(2.7764451 * math.sqrt(2.5) / math.sqrt(5))
    assert found.low + found.high == pytest.approx(6)


def test_sample_of_one_or_none_has_no_interval():
    one = sample(np.array([0.5]))
    assert (one.n, one.mean, one.std, one.low, one.high) == (1, 0.5, None, None, None)
    assert sample(np.array([])).mean is None


def test_sample_of_equal_values_has_no_spread_at_all():
    # numpy's mean of three 0.1 is 0.10000000000000002, and its deviation 1.4e-17
    found = sample(np.array([0.1, 0.1, 0.1]))
    assert (found.mean, found.std, found.low, found.high) == (0.1, 0.0, 0.1, 0.1)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_sample_neither_overflows_nor_underflows(scale):
    found = sample(np.array([1.0, 2.0, 4.0]) * scale)
    np.testing.assert_allclose([found.mean / scale, found.std / scale], [7 / 3, math.sqrt(7 / 3)])


@given(values)
def test_sample_agrees_with_scipy(given_values):
    import scipy.stats

    array = np.array(given_values)
    found = sample(array, 0.9)
    if found.std == 0:
        assert np.ptp(array) <= 1e-12 * np.abs(array).max()
        return
    assert found.std == pytest.approx(array.std(ddof=1))
    low, high = scipy.stats.t.interval(0.9, len(array) - 1, array.mean(), scipy.stats.sem(array))
    assert (found.low, found.high) == (pytest.approx(low, rel=1e-6, abs=1e-6), pytest.approx(high, rel=1e-6, abs=1e-6))


# Student's own data: additional hours of sleep gained by ten patients with two drugs (Student 1908; R's `sleep`).
FIRST = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
SECOND = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])


def test_paired_test_of_students_data():
    # R: t.test(extra ~ group, data = sleep, paired = TRUE)
    found = paired_test(FIRST, SECOND)
    assert (found.method, found.n, found.df) == ("paired t", 10, 9)
    assert found.t == pytest.approx(-4.0621, abs=1e-4)
    assert found.p == pytest.approx(0.002833, abs=1e-6)
    assert (found.low, found.high) == (pytest.approx(-2.4598858, abs=1e-7), pytest.approx(-0.7001142, abs=1e-7))
    # d_z is t over the root of n; Hedges' factor for 9 degrees of freedom is 0.9139
    assert found.effect == pytest.approx(-4.0621 / math.sqrt(10) * 0.9139, abs=1e-3)
    assert found.effect_name == "g_z"


def test_welch_test_of_students_data():
    # R: t.test(extra ~ group, data = sleep)
    found = welch_test(FIRST, SECOND)
    assert (found.t, found.df) == (pytest.approx(-1.8608, abs=1e-4), pytest.approx(17.776, abs=1e-3))
    assert found.p == pytest.approx(0.07939, abs=1e-5)
    assert (found.low, found.high) == (pytest.approx(-3.3654832, abs=1e-7), pytest.approx(0.2054832, abs=1e-7))
    pooled = math.sqrt((FIRST.var(ddof=1) + SECOND.var(ddof=1)) / 2)
    assert found.effect == pytest.approx(-1.58 / pooled * 0.9576, abs=1e-4)


@given(values, values)
def test_welch_test_agrees_with_scipy(first, second):
    import scipy.stats

    first, second = np.array(first), np.array(second)
    found = welch_test(first, second)
    if min(sample(first).std, sample(second).std) == 0:
        return
    expected = scipy.stats.ttest_ind(first, second, equal_var=False)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert found.df == pytest.approx(expected.df)
    interval = expected.confidence_interval()
    assert (found.low, found.high) == (
        pytest.approx(interval.low, rel=1e-6, abs=1e-6),
        pytest.approx(interval.high, rel=1e-6, abs=1e-6),
    )


@given(st.lists(st.tuples(st.integers(-999, 999), st.integers(-999, 999)), min_size=2, max_size=12))
def test_paired_test_agrees_with_scipy(pairs):
    import scipy.stats

    first, second = np.array(pairs, float).T
    found = paired_test(first, second)
    if len(set(first - second)) == 1:
        assert (found.p, found.effect) == (None, None)
        return
    expected = scipy.stats.ttest_rel(first, second)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    interval = expected.confidence_interval()
    assert (found.low, found.high) == (
        pytest.approx(interval.low, rel=1e-6, abs=1e-6),
        pytest.approx(interval.high, rel=1e-6, abs=1e-6),
    )


@given(values, values, st.integers(-60, 60))
def test_tests_do_not_depend_on_the_unit(first, second, exponent):
    first, second = np.array(first), np.array(second)
    before, after = welch_test(first, second), welch_test(first * 2.0**exponent, second * 2.0**exponent)
    assert (before.p, before.effect, before.df) == (after.p, after.effect, after.df)
    assert after.value == before.value * 2.0**exponent


@given(values, values)
def test_the_other_way_round_only_the_sign_changes(first, second):
    one, other = welch_test(np.array(first), np.array(second)), welch_test(np.array(second), np.array(first))
    assert one.value == -other.value
    assert one.p == other.p or one.p == pytest.approx(other.p)
    assert (one.low is None) or one.low == pytest.approx(-other.high)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (paired_test(np.array([]), np.array([])), "0 pairs, and at least 2 are needed"),
        (paired_test(np.array([1.0]), np.array([2.0])), "1 pair, and at least 2 are needed"),
        (paired_test(np.array([0.9, 0.8]), np.array([0.8, 0.7])), "all 2 differences are equal"),
        (paired_test(np.array([0.9, 0.8]), np.array([0.9, 0.8])), "all 2 differences are equal"),
        (welch_test(np.array([1.0]), np.array([2.0, 3.0])), "1 and 2 values, and at least 2 in each are needed"),
        (welch_test(np.array([]), np.array([2.0, 3.0])), "0 and 2 values"),
        (welch_test(np.array([0.1] * 3), np.array([0.3] * 3)), "neither group varies"),
    ],
    ids=str,
)
def test_what_cannot_be_tested_says_why(found, reason):
    assert found.reason.startswith(reason)
    assert (found.p, found.t, found.low, found.high, found.effect) == (None,) * 5


def test_one_group_that_does_not_vary_can_be_tested():
    first, second = np.array([0.5, 0.5, 0.5]), np.array([0.1, 0.2, 0.3])
    found = welch_test(first, second)
    # the difference is 0.3, its error 0.1 over the root of 3, with the degrees of freedom of the other group
    assert (found.t, found.df) == (pytest.approx(0.3 / (0.1 / math.sqrt(3))), pytest.approx(2))


def test_effect_of_two_pairs_is_not_known():
    found = paired_test(np.array([1.0, 3.0]), np.array([0.5, 1.0]))
    assert found.p is not None
    assert found.effect is None


def test_holm_by_hand():
    # Sorted 0.01 0.02 0.03 0.04: 4 x 0.01, 3 x 0.02, 2 x 0.03, and 0.04 no less than those before
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.05]) == [0.05]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_lies_between_p_and_bonferroni(ps):
    for p, corrected in zip(ps, holm(ps), strict=True):
        assert p <= corrected <= min(1, p * len(ps))


def test_correction_is_hedges():
    # c(m) of Hedges 1981, tabulated
    expected = [0.564190, 0.723601, 0.797885, 0.840749, 0.868629]
    assert [correction(df) for df in range(2, 7)] == pytest.approx(expected, abs=1e-5)
    assert correction(1) == 0
    assert correction(1e6) == pytest.approx(1)


def test_mean_interval_is_the_same_as_of_each_alone():
    rows = np.array([[1.0, 2.0, 4.0], [0.0, 0.0, 3.0]])
    half = mean_interval(rows.mean(1), rows.std(1, ddof=1), np.array([3, 3]), 0.95)
    for row, width in zip(rows, half, strict=True):
        found = sample(row)
        assert width == pytest.approx((found.high - found.low) / 2)
    assert np.isnan(mean_interval(np.zeros(1), np.zeros(1), np.array([1]), 0.95)).all()


@pytest.mark.parametrize(("hits", "n", "confidence"), [(18, 20, 0.95), (0, 5, 0.95), (5, 5, 0.9), (881, 1000, 0.99)])
def test_interval_of_a_share_is_that_of_scipy(hits, n, confidence):
    import scipy.stats

    expected = scipy.stats.binomtest(hits, n).proportion_ci(confidence, method="wilson")
    assert share_interval(hits / n, n, confidence) == pytest.approx((expected.low, expected.high))


# Cohen 1988, table 2.4.1, for a two-sided test at 0.05, but that he rounds by an approximation: exact as in G*Power.
@pytest.mark.parametrize(
    ("d", "power", "n"), [(0.2, 0.8, 394), (0.5, 0.8, 64), (0.8, 0.8, 26), (0.5, 0.95, 105), (1.2, 0.9, 16)]
)
def test_two_groups_that_vary_alike_need_what_the_tables_say(d, power, n):
    assert num_to_tell_apart(d, 1.0, 1.0, power=power) == n
    assert num_to_tell_apart(-d * 7, 7.0, 7.0, power=power) == n


@pytest.mark.parametrize(("d", "power", "n"), [(0.2, 0.8, 199), (0.5, 0.8, 34), (0.8, 0.8, 15), (0.5, 0.95, 54)])
def test_pairs_need_what_the_tables_say(d, power, n):
    assert num_to_tell_apart(d, 1.0, power=power) == n


@pytest.mark.parametrize("d", [0.6, 1.0, 1.5, 2.0, 3.0, 5.0])
def test_few_values_are_counted_exactly(d):
    from scipy.stats import nct, t

    def least(df, size):
        for n in range(2, 200):
            critical = t.ppf(0.975, df(n))
            if nct.sf(critical, df(n), size(n)) + nct.cdf(-critical, df(n), size(n)) >= 0.8:
                return n
        return None

    assert num_to_tell_apart(d, 1.0) == least(lambda n: n - 1, lambda n: d * n**0.5)
    assert num_to_tell_apart(d, 1.0, 1.0) == least(lambda n: 2 * n - 2, lambda n: d * (n / 2) ** 0.5)


def test_simulated_tests_find_the_difference_as_often_as_was_said():
    random = np.random.default_rng(0)
    n = num_to_tell_apart(1.0, 0.5, 1.5)
    found = [welch_test(random.normal(0, 0.5, n), random.normal(1, 1.5, n)).p < 0.05 for _ in range(1000)]
    assert abs(np.mean(found) - 0.8) < 0.05
    n = num_to_tell_apart(1.0, 1.5)
    found = [paired_test(random.normal(1, 1.5, n), np.zeros(n)).p < 0.05 for _ in range(1000)]
    assert abs(np.mean(found) - 0.8) < 0.05


@pytest.mark.parametrize(
    ("difference", "std", "other", "n"),
    [(0.0, 1.0, 1.0, None), (1.0, 0.0, 0.0, 2), (1.0, 0.0, None, 2), (1e-9, 1.0, 1.0, None), (1e9, 1.0, 1.0, 2)],
)
def test_extremes_have_an_answer(difference, std, other, n):
    assert num_to_tell_apart(difference, std, other) == n
