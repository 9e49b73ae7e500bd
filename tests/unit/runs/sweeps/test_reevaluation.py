"""Finalists are judged on fresh seeds, by the tests of `compare`."""

import math

import numpy as np
import pytest

from sacristan.runs import SweepError
from sacristan.runs.comparison.inference import holm, paired_test, welch_test
from sacristan.runs.sweeps.agents.reevaluation import choose_finalists, fresh_seeds, judge


def by_seed(values, start=0):
    return dict(enumerate(values, start))


def test_clear_winner_is_found_in_pairs():
    seeds = np.array([0.3, 0.1, 0.5, 0.2, 0.4])
    first, second = seeds + np.array([0, 0.01, 0.02, 0, 0.01]), seeds + 0.1
    found = judge({"b": by_seed(second), "a": by_seed(first)}, "minimize")
    assert [finalist.name for finalist in found.finalists] == ["a", "b"]
    assert found.finalists[1].test == paired_test(first, second)
    assert all(finalist.is_worse for finalist in found.finalists[1:])
    assert found.text.startswith("a is better than b (p = ")


def test_luck_is_not_taken_for_a_winner():
    found = judge({"a": by_seed([0.5, 0.7, 0.6]), "b": by_seed([0.6, 0.5, 0.68])}, "maximize")
    assert not found.finalists[1].is_worse
    assert found.text == (
        "a and b cannot be told apart (p = 0.95, n = 3); "
        f"{found.num_needed} seeds each would do with a probability of 80%, if they are what they seem"
    )
    assert found.num_needed > 1000


def test_different_seeds_are_compared_by_welch():
    first, second = [0.5, 0.7, 0.6], [0.1, 0.2, 0.15, 0.12]
    found = judge({"a": by_seed(first), "b": by_seed(second, 10)}, "maximize")
    assert found.finalists[1].test == welch_test(np.array(first), np.array(second))
    assert all(finalist.is_worse for finalist in found.finalists[1:])


def test_p_is_corrected_for_the_number_of_pairs_of_finalists():
    random = np.random.default_rng(0)
    drawn = {name: random.normal(mean, 1, 6) for name, mean in (("a", 0), ("b", 1.5), ("c", 2))}
    found = judge({name: by_seed(values) for name, values in drawn.items()}, "minimize")
    assert found.finalists[0].name == "a"
    ps = [finalist.test.p for finalist in found.finalists[1:]]
    of_pairs = holm([*ps, paired_test(drawn["b"], drawn["c"]).p])
    assert [finalist.p_holm for finalist in found.finalists[1:]] == of_pairs[:2]
    assert of_pairs[:2] != holm(ps)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("are_paired", [True, False])
@pytest.mark.parametrize("num", [2, 3, 4])
@pytest.mark.parametrize("num_times", [300, pytest.param(1500, marks=pytest.mark.nightly)])
def test_of_equal_finalists_at_most_one_in_twenty_is_called_worse(num, are_paired, num_times):
    random, num_found = np.random.default_rng(num), 0
    for _ in range(num_times):
        start = [0 if are_paired else 100 * place for place in range(num)]
        values = {str(place): by_seed(random.normal(size=10), start[place]) for place in range(num)}
        num_found += any(finalist.is_worse for finalist in judge(values, "minimize").finalists)
    # Two standard deviations above what was asked for.
    assert num_found / num_times <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / num_times)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"a": {1: 0.5}}, "a is the only finalist"),
        (
            {"a": {1: 0.5}, "b": {2: 0.4}},
            "no test is possible between a and b: 1 and 1 values, and at least 2 in each are needed",
        ),
        (
            {"a": {1: 0.5, 2: 0.6}, "b": {1: 0.4, 2: 0.5}},
            "no test is possible between a and b: all 2 differences are equal",
        ),
        (
            {"a": {1: 0.5, 2: math.nan}, "b": {}},
            "no test is possible between a and b: 1 and 0 values, and at least 2 in each are needed",
        ),
    ],
)
def test_few_values_say_nothing(values, text):
    found = judge(values, "maximize")
    assert found.text == text
    assert found.num_needed is None


def test_seeds_that_all_give_the_same_allow_no_test_of_any_finalist():
    same = dict.fromkeys(range(3), 0.9)
    found = judge({"a": same, "b": {0: 0.85, 1: 0.8501, 2: 0.8499}, "c": dict.fromkeys(range(3), 0.8)}, "maximize")
    assert found.finalists[1].is_worse
    assert found.text == "no test is possible between a and c: all 3 differences are equal"


def test_finalists_without_values_are_refused():
    with pytest.raises(SweepError, match="no repetition of a finalist has a value"):
        judge({"a": {1: math.nan}, "b": {}}, "minimize")


def test_best_points_are_chosen_once_each():
    trials = [
        (0, {"lr": 1}, 0.5),
        (1, {"lr": 2}, 0.1),
        (2, {"lr": 1.0}, 0.0),
        (3, {"lr": 3}, math.nan),
        (4, {"lr": 4}, 0.2),
    ]
    assert choose_finalists(trials, "minimize", 3) == [1, 4, 0]
    assert choose_finalists(trials, "maximize", 2) == [0, 4]


def test_fresh_seeds_are_the_same_again_and_not_those_used():
    seeds = fresh_seeds(3, 5)
    assert fresh_seeds(3, 5) == seeds
    assert fresh_seeds(4, 5) != seeds
    assert len({*seeds, *fresh_seeds(3, 5, used=seeds)}) == 10
