from __future__ import annotations

import math

import numpy as np
import pytest

from sacristan.observers import Series
from sacristan.runs.stores.series import epochs_at


class Recorded:
    def __init__(self, metrics, **fields):
        self._series = {name: Series(np.array(x), np.array(y), np.zeros(len(x))) for name, (x, y) in metrics.items()}
        self._fields = fields

    def series(self, name):
        return self._series.get(name)

    def get(self, name):
        return self._fields.get(name.rpartition(".")[2])


VALIDATIONS = {"val/loss": ([40, 80, 100], [3, 2, 1])}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (Recorded({"epoch": ([0, 10, 20], [0, 1, 3])}), [0.5, 2]),
        (Recorded({"epoch": ([20, 0, 15], [3, 0, math.nan])}), [0.75, 2.25]),
        # Steps of an epoch: 40 / 2; the last validation, of a shorter stretch, changes nothing.
        (Recorded(VALIDATIONS, val_interval=2), [0.25, 0.75]),
        (Recorded({"val/f1": ([10], [1]), **VALIDATIONS}, val_interval=1, monitor="val/f1"), [0.5, 1.5]),
        (Recorded({"val/loss": ([1000, 1010, 1020], [3, 2, 1])}, val_interval=1, parent="uid"), [0.5, 1.5]),
    ],
    ids=["logged", "unsorted", "validations", "monitored", "forked"],
)
def test_epochs_of_steps(run, expected):
    np.testing.assert_allclose(epochs_at(run.series, run.get, np.array([5, 15])), expected)


def test_epochs_go_on_beyond_the_first_and_the_last_one_logged():
    run = Recorded({"epoch": ([9, 19, 29], [0, 1, 2])})
    np.testing.assert_allclose(epochs_at(run.series, run.get, np.array([-1, 4, 9, 34])), [-1, -0.5, 0, 2.5])


@pytest.mark.parametrize(
    "run",
    [
        Recorded({"val/loss": ([40], [1])}),
        Recorded({"val/loss": ([40], [1])}, val_interval="often"),
        Recorded({"val/loss": ([40], [1])}, val_interval=1, parent="uid"),
        Recorded({"val/loss": ([0, 1], [1, 1])}, val_interval=1),
        Recorded({"epoch": ([1], [math.nan])}),
        Recorded({}, val_interval=1),
    ],
)
def test_a_record_that_does_not_tell_gives_none(run):
    assert epochs_at(run.series, run.get, np.array([5, 15])) is None
