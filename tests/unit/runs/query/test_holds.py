import pytest

from sacristan.runs.query.filters import Condition, holds


@pytest.mark.parametrize(
    ("value", "expected"), [("DEAD", True), ("COMPLETED", True), ("RUNNING", False), (None, False)]
)
def test_in_holds_where_one_of_the_values_is_it(value, expected):
    assert holds(Condition("status", "in", ["COMPLETED", "DEAD"]), value) is expected
