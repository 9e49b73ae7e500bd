"""Several numbers at one step, which are packed as a row: the record is the same as if each were logged by itself."""

from __future__ import annotations

import math
import random
import sys
import threading

import numpy as np
import pytest
import torch

from sacristan.experiments.running import buffers
from sacristan.experiments.running.buffers import MetricsBuffer
from sacristan.observers.errors import MetricError
from sacristan.observers.record import run_clock
from sacristan.observers.record.points.point_log import PointLog

NAMES = [f"metric_{number}" for number in range(6)]
VALUES = [
    0.5, -1, 0, True, math.nan, math.inf, -math.inf, 2**53, 2**53 + 1, -(2**60), 10**400, np.float64(1.5),
    np.float32(0.1), np.int64(7), np.uint64(2**64 - 1), np.bool_(True), np.ma.masked, np.zeros(3), torch.tensor(2.5),
    torch.zeros(2), torch.zeros((), device="meta"), "text", None, 1j,
]  # fmt: skip
STEPS = [None, True, 7, 0.5, np.int64(3), -(2**63), 2**63 - 1, 2**63, "no step"]


def buffer_with(half_points=50):
    log = PointLog()
    log.begin(run_clock.now(), half_points)
    log.keeps_new = True
    buffer = MetricsBuffer()
    buffer.write_to([log], keeps_new=True)
    return buffer


def log(buffer, values, step):
    """Log as `Recorder.log` does; return the names of the values that are rejected."""
    rejected = []
    for name, value in buffer.log_quickly(values, step).items():
        try:
            buffer.log_scalar_metric(name, value, step)
        except MetricError:
            rejected.append(name)
    return sorted(rejected)


def log_each(buffer, values, step):
    rejected = []
    for name, value in values.items():
        try:
            buffer.log_scalar_metric(name, value, step)
        except MetricError:
            rejected.append(name)
    return sorted(rejected)


def state(buffer):
    points = {name: [list(map(repr, new["steps"])), new["values"]] for name, new in buffer.take().items()}
    return points, buffer.position()


@pytest.mark.parametrize("seed", range(8))
def test_rows_record_what_single_calls_record(seed):
    chance = random.Random(seed)
    quick, single = buffer_with(), buffer_with()
    found, expected = [], []
    for step in range(300):
        names = NAMES if chance.random() < 0.7 else chance.sample(NAMES, chance.randrange(1, 6))
        is_plain = chance.random() < 0.8
        values = {name: chance.random() if is_plain else chance.choice(VALUES) for name in names}
        at = step if chance.random() < 0.8 else chance.choice(STEPS)
        assert log(quick, values, at) == log_each(single, values, at)
        if chance.random() < 0.1:
            found.append(state(quick))
            expected.append(state(single))
        if chance.random() < 0.02:
            position = single.position()
            assert quick.position() == position
            quick.count_from(position)
            single.count_from(position)
    found.append(state(quick))
    expected.append(state(single))
    assert quick._rows
    np.testing.assert_equal(found, expected)


def test_row_is_packed_by_one_call(monkeypatch):
    buffer = buffer_with()
    row = dict.fromkeys(NAMES, 0.5)
    log(buffer, row, 0)
    log(buffer, row, 1)
    monkeypatch.setattr(buffer._live, "add", None)
    log(buffer, row, 2)
    assert buffer.position()["metric_0"] == [3, 2]


def test_row_that_does_not_fit_is_logged_one_by_one():
    buffer = buffer_with(half_points=4)
    for step in range(5):
        assert log(buffer, dict.fromkeys(NAMES, float(step)), step) == []
    points, position = state(buffer)
    assert all(values == [0.0, 1.0, 2.0, 3.0, 4.0] for _, values in points.values())
    assert position == {name: [5, 4] for name in NAMES}


def test_row_with_the_clock_set_back_loses_no_point(monkeypatch):
    buffer = buffer_with()
    monkeypatch.setattr(buffers, "run_time", lambda: -5.0)
    for step in range(3):
        log(buffer, dict.fromkeys(NAMES, 0.5), step)
    assert state(buffer)[1] == {name: [3, 2] for name in NAMES}


def test_rows_of_threads_lose_no_point_while_points_are_moved():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        buffer, num_steps = buffer_with(half_points=400), 400
        shared, found = dict.fromkeys(NAMES, 1.0), {}

        def work(number):
            own = {f"own_{number}": 0.0, f"other_{number}": 1.0, f"third_{number}": 2.0}
            for step in range(num_steps):
                log(buffer, own, step)
                log(buffer, shared, step)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for name, new in buffer.take().items():
                found.setdefault(name, []).extend(new["steps"])
        for thread in threads:
            thread.join()
        for name, new in buffer.take().items():
            found.setdefault(name, []).extend(new["steps"])
    finally:
        sys.setswitchinterval(interval)
    for number in range(4):
        for name in (f"own_{number}", f"other_{number}", f"third_{number}"):
            assert found[name] == list(range(num_steps))
    assert all(sorted(found[name]) == sorted([*range(num_steps)] * 4) for name in NAMES)
    assert {name: count for name, (count, _) in buffer.position().items()} == {
        name: len(steps) for name, steps in found.items()
    }


def test_row_that_two_threads_make_at_once_counts_the_points_of_both(monkeypatch):
    buffer, values = buffer_with(), dict.fromkeys(NAMES, 0.5)
    log(buffer, values, 0)

    def make(metrics):
        monkeypatch.undo()
        log(buffer, values, 1)  # another thread comes in here
        return buffers.Row(metrics)

    monkeypatch.setattr(buffers, "Row", make)
    log(buffer, values, 2)
    assert buffer.position() == {name: [3, 2] for name in NAMES}


def test_garbage_that_logs_while_a_row_is_packed_loses_no_point():
    """A finalizer may run wherever memory is taken, and may even move the points."""
    buffer, row = buffer_with(), dict.fromkeys(NAMES, 0.5)
    log(buffer, row, 0)
    log(buffer, row, 1)
    [packed] = buffer._rows.values()
    slots = type(packed).slots
    interrupted = []

    class Interrupted(type(packed)):
        __slots__ = ()

        def slots(self, *given):
            found = slots(self, *given)
            if len(interrupted) < 3:
                interrupted.append(1)
                buffer.log_scalar_metric("metric_0", 9.0, 100 + len(interrupted))
                if len(interrupted) == 2:
                    taken.append(buffer.take())
            return found

    taken = []
    buffer._rows[(*NAMES,)] = Interrupted(packed.metrics)
    log(buffer, row, 2)
    taken.append(buffer.take())
    steps = [step for part in taken for step in part.get("metric_5", {"steps": []})["steps"]]
    assert steps == [0, 1, 2]
    first = [step for part in taken for step in part["metric_0"]["steps"]]
    assert sorted(first) == [0, 1, 2, 101, 102, 103]
