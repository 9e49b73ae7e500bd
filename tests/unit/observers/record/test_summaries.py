import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from observers.record.schema import POINT, summarize
from observers.record.summaries import add_to_summaries

NAMES = {0: ("a", False), 1: ("b", False), 2: ("a", True), 5: ("c", True)}
ROW = st.tuples(
    st.sampled_from([0, 1, 2, 3, 5]),
    st.integers(-5, 5),
    st.floats(-100, 100) | st.sampled_from([math.nan, math.inf, -math.inf]),
)


def points_of(rows):
    points = np.zeros(len(rows), POINT)
    for point, (number, step, value) in zip(points, rows, strict=True):
        is_float = NAMES.get(number, ("", False))[1]
        point["metric"], point["value"] = number, value
        point["step"] = np.array([step / 4]).view("<i8")[0] if is_float else step
    return points


@settings(deadline=None)
@given(batches=st.lists(st.lists(ROW, max_size=12), max_size=4))
def test_summaries_of_all_metrics_at_once_are_those_of_each_alone(batches):
    found, expected = {}, {}
    for rows in batches:
        found = add_to_summaries(found, points_of(rows), NAMES)
        for name in {NAMES[number][0] for number, *_ in rows if number in NAMES}:
            mine = [(s / 4 if NAMES[n][1] else s, v) for n, s, v in rows if NAMES.get(n, ("",))[0] == name]
            steps, values = np.array([s for s, _ in mine], object), np.array([v for _, v in mine])
            typed = [np.array(s, float if isinstance(s, float) else int) for s in steps]
            expected[name] = summarize(values, np.array([*typed, None], object)[:-1], expected.get(name))
    assert found.keys() == expected.keys()
    for name, row in expected.items():
        assert found[name].keys() == row.keys()
        for key, value in row.items():
            np.testing.assert_allclose(found[name][key], value, rtol=1e-12, atol=1e-12, err_msg=f"{name}.{key}")
            assert type(found[name][key]) is type(value), (name, key)
