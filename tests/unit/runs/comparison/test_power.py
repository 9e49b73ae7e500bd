"""Numbers of repetitions, against the tables of Cohen 1988 and a simulation."""

import numpy as np
import pytest

from sacristan.runs.comparison.inference import paired_test, welch_test
from sacristan.runs.comparison.power import num_to_tell_apart


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
