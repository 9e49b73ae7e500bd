"""Expressions of metrics."""

import numpy as np
import pytest

from sacristan.observers import Series
from sacristan.runs import PlotError
from sacristan.runs.comparison.expressions import Quantity

METRICS = ("val/loss", "train/loss", "top-1 acc", "lr")


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
        "sacristan.runs.comparison.expressions.each_series", lambda runs, name: ((run, parts[name]) for run in runs)
    )
    [(run, series)] = Quantity.of("a / b", parts).each_series(["run"])
    assert run == "run"
    assert series.steps.tolist() == [1, 4]
    assert series.values.tolist() == [0.2, np.inf]
    assert series.times.tolist() == [2.0, 4.0]
