"""Estimates of the time left, by a clock that the tests set."""

from __future__ import annotations

import pytest

from sacristan.experiments.training.progress import TimeLeft


class Clock:
    """A clock that stands still until it is set."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_time_left_before_two_steps_is_unknown(clock):
    left = TimeLeft(100, 0, clock)
    assert left.seconds() is None
    left.step(1)
    clock.now = 60.0
    assert left.seconds() is None


def test_time_left_of_a_resumed_training_counts_the_steps_of_its_session(clock):
    left = TimeLeft(100, 0, clock)
    left.step(60)
    clock.now = 20.0
    left.step(70)
    assert left.seconds() == 60.0


def test_time_left_adds_validations_to_come(clock):
    left = TimeLeft(40, 4, clock)
    left.step(0)
    for epoch, now in enumerate((10.0, 25.0), start=1):
        clock.now = now
        left.step(10 * epoch)
        clock.now += 5.0
        left.validated()
    # 20 steps at 1 s, and 2 validations at 5 s
    assert left.seconds() == 30.0
    assert not left.lacks_validations


def test_time_left_at_the_end_is_none_of_it(clock):
    left = TimeLeft(10, 1, clock)
    left.step(0)
    clock.now = 10.0
    left.step(10)
    left.validated()
    left.validated()  # a callback may validate once more
    assert left.seconds() == 0.0
