"""Few points of a run are handled without NumPy, with the same result."""

import json
import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacristan.observers.file.sacred_form import sacred_metrics
from sacristan.observers.record import points as module
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.points import (
    NO_SUMMARIES,
    POINT,
    SLOT,
    STAMP_SHIFT,
    add_packed_to_summaries,
    add_to_summaries,
    packed,
    points_in,
)
from sacristan.observers.record.schema import POINTS

NAMES = {0: ("loss", False), 1: ("loss", True), 2: ("accuracy", False), 3: ("system/cpu", False)}
FLOATS = st.floats(width=64) | st.sampled_from([0.0, -0.0, np.nan, np.inf, -np.inf, 1e308, 5e-324])
ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1), FLOATS), max_size=30
)


@pytest.fixture(autouse=True, scope="module")
def without_numpy():
    """Handle all points without NumPy, although the tests have imported it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "needs_numpy", lambda num_points: False)
        yield


def comparable(value):
    return json.dumps(value, sort_keys=True)  # which writes NaN as NaN


@given(ROWS, st.integers(0, 30))
def test_summaries_are_those_of_numpy(rows, cut):
    points = np.array(rows, POINT)
    expected = add_to_summaries(add_to_summaries(NO_SUMMARIES, points[:cut], NAMES), points[cut:], NAMES)
    data = points.tobytes()
    found = add_packed_to_summaries(NO_SUMMARIES, data[: cut * 24], NAMES)
    found = add_packed_to_summaries(found, data[cut * 24 :], NAMES)
    assert comparable(found) == comparable(expected)
    assert [*found.rows] == [*expected.rows]


@given(ROWS, st.integers(1, 3))
def test_points_are_taken_from_memory_as_by_numpy(rows, stamp):
    slots = np.array(
        [(step, value, time, (stamp << STAMP_SHIFT) + number + 1) for number, time, step, value in rows], SLOT
    )
    slots["tag"][::3] = 0
    assert packed(slots.tobytes(), stamp) == points_in(slots, stamp).tobytes()


def test_metrics_of_sacred_are_those_of_numpy(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.points.begin(0.0)
    for step in range(5):
        for name, value in (("loss", 0.1 * step), ("acc", float("nan"))):
            metric = journal.points.metric(name, float_steps=name == "acc")
            journal.points.live.add_any(metric, step if name == "loss" else step + 0.5, value, 1.5 * step)
    journal.points.metric("none")
    journal.close()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    few = sacred_metrics(tmp_path, start)
    assert few["loss"]["steps"] == [0, 1, 2, 3, 4]
    assert few["none"] == {"steps": [], "values": [], "timestamps": []}
    data = bytearray((tmp_path / POINTS).read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr("sacristan.observers.record.points.intact_points.needs_numpy", lambda num_points: True)
        assert comparable(sacred_metrics(tmp_path, start)) == comparable(few)
        data[-1] ^= 1
        (tmp_path / POINTS).write_bytes(data)
        damaged = sacred_metrics(tmp_path, start)
    monkeypatch.setattr("sacristan.observers.record.points.intact_points.needs_numpy", lambda num_points: False)
    assert comparable(sacred_metrics(tmp_path, start)) == comparable(damaged) != comparable(few)


def test_few_points_are_recorded_without_numpy_and_many_with_it(tmp_path):
    script = """
import sys
from pathlib import Path
from sacristan.observers.record.journal import Journal
journal = Journal(Path(sys.argv[1]))
journal.points.begin(0.0)
for step in range(int(sys.argv[2])):
    journal.points.live.add_any(journal.points.metric("loss"), step, 0.5, 1.0)
journal.points.drain()
assert journal.points.summary["loss"]["count"] == int(sys.argv[2])
journal.close()
print("numpy" in sys.modules)
"""
    for count, is_there in ((900, "False"), (1100, "True")):
        folder = tmp_path / str(count)
        folder.mkdir()
        command = [sys.executable, "-c", script, str(folder), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == is_there
        assert (folder / POINTS).stat().st_size == count * 24
