import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacristan.observers.record.journal import Journal
from sacristan.observers.record.points import NO_SUMMARIES, POINT, Summaries, add_to_summaries, summarize

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
    return row | ({"finite": len(finite), "mean": float(sum(map(Fraction, finite)) / len(finite))} if finite else {})


@settings(deadline=None)
@given(batches=st.lists(st.lists(ROW, max_size=12) | st.lists(FINITE_ROW, max_size=12), max_size=4))
def test_summaries_of_all_metrics_at_once_are_those_of_each_point_by_point(batches):
    found: Summaries = NO_SUMMARIES
    logged: dict = {}
    for rows in batches:
        found = add_to_summaries(found, points_of(rows), NAMES)
        for number, step, value in rows:
            if number in NAMES:
                name, is_float = NAMES[number]
                logged.setdefault(name, []).append((step / 4 if is_float else step, value))
    expected = {name: summary_of(points) for name, points in logged.items()}
    assert found.rows.keys() == expected.keys()
    for name, row in expected.items():
        assert found.rows[name].keys() == row.keys()
        for key, value in row.items():
            np.testing.assert_array_equal(found.rows[name][key], value, err_msg=f"{name}.{key}")
            assert type(found.rows[name][key]) is type(value), (name, key)


@settings(deadline=None)
@given(
    values=st.lists(st.floats(), min_size=1, max_size=30)
    | st.lists(st.floats(1e307, 1.79e308), min_size=1, max_size=9),
    cuts=st.lists(st.integers(0, 30), max_size=4),
)
@pytest.mark.parametrize("others", [0, 3])
def test_summaries_have_the_exact_mean_and_are_the_same_however_points_are_batched(values, cuts, others):
    points = np.zeros(len(values), POINT)
    points["step"], points["value"] = np.arange(len(values)), values
    found = NO_SUMMARIES
    for part in np.split(points, sorted(cuts)):
        rows = np.concatenate([part, np.full(others, points[:1])]) if len(part) else part
        rows["metric"][len(part) :] = 1
        found = add_to_summaries(found, rows, NAMES)
    once = summarize(np.array(values), np.arange(len(values)))
    np.testing.assert_equal(found.rows["a"], once)
    finite = [Fraction(value) for value in values if math.isfinite(value)]
    assert not finite or once["mean"] == float(sum(finite) / len(finite))


def test_summary_file_is_the_same_for_other_heartbeats_and_for_two_sessions(tmp_path):
    values = np.random.default_rng(0).normal(size=300).tolist()

    def log(journal, start, stop, batch):
        for at in range(start, stop, batch):
            part = values[at : min(at + batch, stop)]
            steps = list(range(at, at + len(part)))
            journal.points.add_batch("loss", steps, part, np.zeros(len(part), np.uint32))
            journal.write_summary()

    for name, batch in (("often", 7), ("seldom", 300), ("resumed", 11)):
        (tmp_path / name).mkdir()
        journal = Journal(tmp_path / name)
        log(journal, 0, 113 if name == "resumed" else 300, batch)
        journal.close()
    journal = Journal(tmp_path / "resumed")
    journal.recall()
    log(journal, 113, 300, 13)
    journal.close()
    often, seldom, resumed = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("often", "seldom", "resumed")
    )
    assert often == seldom == resumed
    assert often["loss"]["mean"] == float(sum(map(Fraction, values)) / 300)
