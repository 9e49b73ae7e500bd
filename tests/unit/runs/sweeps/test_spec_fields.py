"""Readers of single fields of a spec."""

import math

import pytest

from sacristan.runs import SweepError
from sacristan.runs.sweeps.spec.fields import number


@pytest.mark.parametrize(
    "value", [10**400, -(10**400), math.inf, math.nan, True, "1"], ids=lambda value: str(value)[:5]
)
def test_number_that_no_float_holds_is_rejected(value):
    with pytest.raises(SweepError, match=r"^lr\.max: got .*, expected a number$"):
        number()("lr.max", value)
