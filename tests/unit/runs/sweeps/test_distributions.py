"""The laws of values are those of wandb's `sweeps` 0.3.0."""

import numpy as np
import optuna
import pytest

from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.spec.distributions import (
    DISTRIBUTIONS,
    QUANTILES,
    Choice,
    Constant,
    Integers,
    Reals,
    read_distribution,
)
from sacristan.runs.sweeps.study.points import suggest

NUM = 35


def same(ours, theirs):
    if isinstance(theirs, float):
        return type(ours) is float and np.isclose(ours, theirs, rtol=1e-9, atol=1e-12)
    return type(ours) is type(theirs) and ours == theirs


@pytest.mark.parametrize("position", range(NUM))
def test_quantile_function_is_that_of_wandb(position, script, reference):
    parameter = script.PARAMETERS[position]
    law = read_distribution("x", parameter)
    ours = [law.ppf(quantile) for quantile in script.QUANTILES]
    theirs = reference["laws"][position]["values"]
    assert [pair for pair in zip(ours, theirs, strict=True) if not same(*pair)] == []


def test_every_law_is_compared(script, reference):
    assert len(script.PARAMETERS) == len(reference["laws"]) == NUM
    named = {parameter.get("distribution") for parameter in script.PARAMETERS}
    assert set(DISTRIBUTIONS) - named == {"constant", "categorical_w_probabilities"}  # which are taken without a name


@pytest.mark.parametrize(
    ("parameter", "law"),
    [
        ({"value": [1, 2]}, Constant([1, 2])),
        ({"distribution": "constant", "value": None}, Constant(None)),
        ({"values": [1]}, Choice((1,))),
        ({"min": 1, "max": 2}, Integers(1, 2)),
        ({"min": 1.0, "max": 2}, Reals("uniform", 1.0, 2)),
        ({"min": 1, "max": 2.0}, Reals("uniform", 1, 2.0)),
        ({"distribution": "normal"}, Reals("normal", 0, 1)),
        ({"distribution": "q_beta"}, Reals("beta", 1, 1, 1)),
        ({"distribution": "categorical", "values": [1, 2], "probabilities": [0, 1]}, Choice((1, 2), (0, 1))),
        ({"distribution": "categorical_w_probabilities", "values": [1], "probabilities": [1]}, Choice((1,), (1,))),
        ({"distribution": "inv_log_uniform_values", "min": 1, "max": 2}, Reals("log_uniform", 1, 2)),
    ],
)
def test_defaults_are_those_of_wandb(parameter, law):
    assert read_distribution("x", parameter) == law


def test_value_of_q_has_no_digits_of_rounding():
    law = read_distribution("x", {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.1})
    assert {repr(law.ppf(quantile)) for quantile in np.linspace(0, 1, 101)} == {f"{tenth / 10}" for tenth in range(11)}


def test_values_stay_within_their_limits():
    low, high = 1e-5, 0.1
    law = read_distribution("x", {"distribution": "log_uniform_values", "min": low, "max": high})
    assert (law.ppf(0.0), law.ppf(1.0)) == (low, high)
    assert [read_distribution("x", {"min": 3, "max": 7}).ppf(quantile) for quantile in (0.0, 1.0)] == [3, 7]
    assert [read_distribution("x", {"values": [1, 2]}).ppf(quantile) for quantile in (0.0, 1.0)] == [1, 2]
    last = read_distribution("x", {"values": [1, 2, 3], "probabilities": [0.5, 0.5, 0]})
    assert [last.ppf(quantile) for quantile in (0.0, 1.0)] == [1, 2]


@pytest.fixture(scope="module")
def samples(script):
    """Points of a random search over every law, as a sweep makes them."""
    parameters = {f"p{position:02}": parameter for position, parameter in enumerate(script.PARAMETERS)}
    spec = read_spec({"method": "random", "parameters": parameters})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    return [suggest(spec, study.ask()) for _ in range(400)]


@pytest.mark.parametrize("position", range(NUM))
def test_samples_have_the_law(position, samples, script):
    from scipy.stats import chisquare, ks_2samp

    law = read_distribution("x", script.PARAMETERS[position])
    drawn = [point[f"p{position:02}"] for point in samples]
    expected = [law.ppf(quantile) for quantile in (np.arange(4000) + 0.5) / 4000]
    assert {type(value) for value in drawn} <= {type(value) for value in expected}
    values = sorted(set(drawn) | set(expected))
    if len(values) > 1000:
        assert ks_2samp(drawn, expected).pvalue > 0.001
        return
    # Of discrete laws by chi squared, with what is rare taken together.
    shares = np.array([expected.count(value) for value in values]) / len(expected)
    counts = np.array([drawn.count(value) for value in values])
    often = shares * len(drawn) >= 5
    shares = np.append(shares[often], shares[~often].sum())
    counts = np.append(counts[often], counts[~often].sum())
    used = shares > 0
    assert counts[~used].sum() == 0
    assert used.sum() == 1 or chisquare(counts[used], shares[used] * len(drawn)).pvalue > 0.001


def test_unbounded_laws_are_drawn_without_their_ends():
    law = read_distribution("x", {"distribution": "log_normal"})
    assert law.quantiles == QUANTILES
    assert [round(law.ppf(quantile), 3) for quantile in QUANTILES] == [0.009, 115.981]


@pytest.mark.parametrize("position", range(NUM))
def test_quantile_function_is_that_of_the_installed_package(position, live):
    law = read_distribution("x", live.PARAMETERS[position])
    theirs = live.quantile_function(live.PARAMETERS[position])[1]
    ours = [law.ppf(quantile) for quantile in live.QUANTILES]
    assert [pair for pair in zip(ours, theirs, strict=True) if not same(*pair)] == []
