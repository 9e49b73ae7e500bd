import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from observers.record.points.points import POINT
from observers.record.points.summaries import add_to_summaries

NAMES = {0: ("a", False), 1: ("b", False), 2: ("a", True), 5: ("c", True)}
ROW = st.tuples(
    st.sampled_from([0, 1, 2, 3, 5]),
    st.integers(-5, 5),
    st.floats(-100, 100) | st.sampled_from([math.nan, math.inf, -math.inf]),
)
# Of one metric, and finite, as most are.
FINITE_ROW = st.tuples(st.just(0), st.integers(-5, 5), st.floats(-100, 100))


def points_of(rows):
    points = np.zeros(len(rows), POINT)
    for point, (number, step, value) in zip(points, rows, strict=True):
        is_float = NAMES.get(number, ("", False))[1]
        point["metric"], point["value"] = number, value
        point["step"] = np.array([step / 4]).view("<i8")[0] if is_float else step
    return points


def summary_of(points):
    """Return the summary of steps and values, a point at a time."""
    row = {"count": 0, "first": points[0][1], "finite": 0, "mean": math.nan}
    for step, value in points:
        row |= {"count": row["count"] + 1, "last": value, "last_step": step}
        for name, is_better in (("min", value < row.get("min", math.inf)), ("max", value > row.get("max", -math.inf))):
            if is_better or (name not in row and not math.isnan(value)):
                row |= {name: value, f"{name}_step": step}
    finite = [value for _, value in points if math.isfinite(value)]
    return row | ({"finite": len(finite), "mean": math.fsum(finite) / len(finite)} if finite else {})


@settings(deadline=None)
@given(batches=st.lists(st.lists(ROW, max_size=12) | st.lists(FINITE_ROW, max_size=12), max_size=4))
def test_summaries_of_all_metrics_at_once_are_those_of_each_point_by_point(batches):
    found, logged = {}, {}
    for rows in batches:
        found = add_to_summaries(found, points_of(rows), NAMES)
        for number, step, value in rows:
            if number in NAMES:
                name, is_float = NAMES[number]
                logged.setdefault(name, []).append((step / 4 if is_float else step, value))
    expected = {name: summary_of(points) for name, points in logged.items()}
    assert found.keys() == expected.keys()
    for name, row in expected.items():
        assert found[name].keys() == row.keys()
        for key, value in row.items():
            np.testing.assert_allclose(found[name][key], value, rtol=1e-12, atol=1e-12, err_msg=f"{name}.{key}")
            assert type(found[name][key]) is type(value), (name, key)
