"""Values that may be logged as metrics, and those that the call rejects."""

import decimal
import fractions
import logging
import math

import numpy as np
import pytest
import torch

from sacristan.experiments.running.buffers import MetricsBuffer
from sacristan.observers.errors import MetricError


class Wordless:
    """Has no text: `str` raises."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class Unwilling:
    def __float__(self):
        raise ArithmeticError("not today")


@pytest.fixture
def buffer():
    buffer = MetricsBuffer()
    buffer.write_to([], keeps_new=True)
    return buffer


def logged(buffer):
    return {name: list(zip(new["steps"], new["values"], strict=True)) for name, new in buffer.take().items()}


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0.5, 0.5),
        (3, 3.0),
        (True, 1.0),
        (-math.inf, -math.inf),
        (np.float32(1.5), 1.5),
        (np.float64(2.5), 2.5),
        (np.int64(-7), -7.0),
        (np.bool_(True), 1.0),
        (np.longdouble(0.25), 0.25),
        (np.array(4.0), 4.0),
        (np.array([[5]]), 5.0),
        (torch.tensor(6.5), 6.5),
        (torch.tensor([[7]]), 7.0),
        (torch.tensor(8.5, requires_grad=True), 8.5),
        (torch.tensor(9.5, dtype=torch.bfloat16), 9.5),
        (torch.tensor(True), 1.0),
        (decimal.Decimal("0.125"), 0.125),
        (fractions.Fraction(1, 4), 0.25),
    ],
    ids=repr,
)
def test_every_kind_of_one_number_is_a_value(buffer, value, number):
    buffer.log_scalar_metric("x", value, 1)
    buffer.log_scalar_metric("x", value)  # the second one of a name goes another way
    assert logged(buffer) == {"x": [(1, number), (2, number)]}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("5", r"got '5' \(str\), expected a number"),
        (None, "got None, expected a number"),
        (b"5", r"\(bytes\), expected a number"),
        ([1.0], r"got \[1.0\] \(list\), expected a number"),
        (1j, "expected a number"),
        (np.complex64(1), "got an array of complex64, expected a number"),
        (np.str_("5"), "expected a number"),
        (np.array("5"), "got an array of <U1, expected a number"),
        (np.datetime64(1, "s"), "expected a number"),
        (np.zeros(3), r"got a ndarray of shape \(3,\), expected one number; log its mean"),
        (torch.zeros(2, 3), r"got a Tensor of shape \(2, 3\), expected one number; log its mean"),
        (torch.zeros(0), r"got a Tensor of shape \(0,\), expected one number; log it only when there is one"),
        (torch.tensor(1j), "got a complex tensor"),
        (10**400, "beyond what a float of 64 bits holds"),
        (Wordless(), r"\(Wordless\), expected a number"),
        (Unwilling(), r"which cannot be made a float \(ArithmeticError\)"),
        (torch.zeros((), device="meta"), "on the device meta, which has no value"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_what_is_no_number_is_refused_with_the_callers_line(buffer, value, said):
    buffer.log_scalar_metric("x", 0.5)
    with pytest.raises(MetricError, match=said) as refused:
        buffer.log_scalar_metric("x", value)
    assert str(refused.value).startswith("log_scalar('x') in test_buffers.py, line ")
    with pytest.raises(MetricError, match=said):
        buffer.log_scalar_metric("other", value, 3)
    buffer.log_scalar_metric("x", 1.5)
    assert buffer.position() == {"x": [2, 1]}
    assert logged(buffer) == {"x": [(0, 0.5), (1, 1.5)]}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (7, r"log_scalar in test_.*: got the name 7 \(int\), expected a string such as 'train/loss'"),
        (None, "got the name None, expected a string"),
        (("a", 1), r"got the name \('a', 1\) \(tuple\), expected a string"),
        (["a"], r"got the name \['a'\] \(list\), expected a string"),
        ("", "got an empty name"),
        (Wordless(), r"\(Wordless\), expected a string"),
    ],
    ids=range(6),
)
def test_name_that_is_no_text_is_refused(buffer, name, said):
    with pytest.raises(MetricError, match=said):
        buffer.log_scalar_metric(name, 0.5, 1)
    assert logged(buffer) == {}


@pytest.mark.parametrize(
    ("step", "number"),
    [
        (-(2**63), -(2**63)),
        (True, 1),
        (np.int32(4), 4),
        (torch.tensor(5), 5),
        (torch.tensor([6]), 6),
        (7.0, 7),
        (np.float32(0.5), 0.5),
        (1e300, 1e300),
    ],
    ids=repr,
)
def test_every_kind_of_one_number_is_a_step(buffer, step, number):
    buffer.log_scalar_metric("x", 0.5, step)
    [found] = [step for step, _ in logged(buffer)["x"]]
    assert (found, type(found)) == (number, type(number))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("3", r"got the step '3' \(str\), expected an integer, a finite float, or None to count"),
        (math.nan, "got the step nan, expected an integer, a finite float"),
        (2**63, "got a step beyond 64 bits"),
        (torch.zeros(2), r"got a Tensor of shape \(2,\), expected one number"),
        (np.zeros(0), r"got a ndarray of shape \(0,\)"),
        ([1], "got the step"),
        (Wordless(), "got the step"),
    ],
    ids=range(7),
)
def test_step_that_is_no_number_is_refused_and_counts_for_nothing(buffer, step, said):
    buffer.log_scalar_metric("x", 0.5, 1)
    with pytest.raises(MetricError, match=said):
        buffer.log_scalar_metric("x", 0.5, step)
    buffer.log_scalar_metric("x", 0.5)
    assert buffer.position() == {"x": [2, 2]}
    assert [step for step, _ in logged(buffer)["x"]] == [1, 2]


@pytest.mark.parametrize("value", [0.5, torch.tensor(0.5)], ids=["quick", "any"])
def test_step_behind_the_greatest_is_refused_and_counts_for_nothing(buffer, value):
    buffer.log_scalar_metric("x", value, 2**63 - 1)
    for _ in range(2):
        with pytest.raises(MetricError, match=r"got no step, and the last one is 2\*\*63 - 1") as refused:
            buffer.log_scalar_metric("x", value)
        assert str(refused.value).startswith("log_scalar('x') in test_buffers.py, line ")
    buffer.log_scalar_metric("x", value, 3)
    buffer.log_scalar_metric("x", value)
    assert logged(buffer) == {"x": [(2**63 - 1, 0.5), (3, 0.5), (4, 0.5)]}


def test_integers_that_a_float_cannot_hold_are_said_once_for_each_metric(buffer, caplog):
    with caplog.at_level(logging.WARNING):
        for value in (2**53, 2**53 + 1, 2**60 + 1, np.uint64(2**64 - 1)):
            buffer.log_scalar_metric("x", value)
        buffer.log_scalar_metric("y", -(2**53) - 1)
    assert [value for _, value in logged(buffer)["x"]] == [2.0**53, 2.0**53, 2.0**60, 2.0**64]
    said = [record.message for record in caplog.records]
    assert len(said) == 2
    assert f"got the integer {2**53 + 1}, which a float of 64 bits cannot hold" in said[0]
    assert said[0].startswith("log_scalar('x') in test_buffers.py, line ")
    assert f"got the integer {-(2**53) - 1}" in said[1]


def test_steps_without_a_number_count_on_from_the_last_of_any_kind(buffer):
    for step in (None, None, 7, None, 0.5, None, None, 3, None):
        buffer.log_scalar_metric("x", 1.0, step)
    assert [step for step, _ in logged(buffer)["x"]] == [0, 1, 7, 8, 0.5, 1.5, 2.5, 3.0, 4.0]


def test_clock_that_was_set_back_loses_no_point(buffer, monkeypatch):
    monkeypatch.setattr("sacristan.experiments.running.buffers.run_time", lambda: 0.0)
    for step in range(3):
        buffer.log_scalar_metric("x", 1.0, step)
    assert [step for step, _ in logged(buffer)["x"]] == [0, 1, 2]


def test_value_of_another_device_is_fetched_later_and_keeps_its_place(buffer, monkeypatch):
    fetched = []

    class OnDevice(torch.Tensor):
        """A tensor as of a GPU: its value costs a wait."""

        @property
        def device(self):
            return torch.device("cuda")

        def item(self):
            fetched.append(1)
            return float(self.as_subclass(torch.Tensor))

    value = torch.tensor(2.5).as_subclass(OnDevice)
    buffer.log_scalar_metric("x", 1.5)
    buffer.log_scalar_metric("x", value)
    buffer.log_scalar_metric("x", 3.5)
    value += 100
    assert not fetched
    assert buffer.position() == {"x": [3, 2]}
    assert logged(buffer) == {"x": [(0, 1.5), (1, 2.5), (2, 3.5)]}
    assert fetched


def test_masked_values_are_nan_and_masked_steps_are_refused(buffer):
    for value in (np.ma.masked, np.ma.array([7.0], mask=[True]), np.ma.array(7, mask=False)):
        buffer.log_scalar_metric("x", value)
    np.testing.assert_equal(logged(buffer), {"x": [(0, math.nan), (1, math.nan), (2, 7.0)]})
    with pytest.raises(MetricError, match="got the step nan"):
        buffer.log_scalar_metric("x", 1.0, np.ma.array(3, mask=True))
