from __future__ import annotations

import math

import pytest

from sacristan.runs.query import changes, dotted, is_same, shallowest, without_pickles

SCALAR = {"py/object": "numpy.float64", "dtype": "float64", "value": 0.9}
BARE = {"dtype": "float64", "value": 0.9}


def test_changes_of_flat_documents():
    old = dotted({"a": {"b": 1, "c": {}}, "nan": math.nan, "gone": 0, "flag": True, "list": [1, {"x": math.nan}]})
    new = dotted({"a": {"b": 2, "c": {}}, "nan": math.nan, "new": 0, "flag": 1, "list": [1, {"x": math.nan}]})
    found = changes(old, new)
    assert found.changed == {"a.b": (1, 2), "flag": (True, 1)}
    assert (found.added, found.removed) == ({"new": 0}, {"gone": 0})
    assert not changes(old, old)
    assert is_same(1, 1.0)


def test_shallowest_entries_come_first():
    document = {"a": {"b": {"c": 1}, "d": 2}, "e": {}, "f": 3}
    assert list(shallowest(document, 9).items()) == [("e", {}), ("f", 3), ("a.d", 2), ("a.b.c", 1)]
    assert shallowest(document, 9) == dotted(document)
    assert list(shallowest(document, 3)) == ["e", "f", "a.d"]


@pytest.mark.parametrize(
    ("value", "once", "twice"),
    [
        (SCALAR, 0.9, 0.9),
        (BARE, BARE, 0.9),
        ({"acc": [SCALAR, {"py/tuple": [1, SCALAR]}]}, {"acc": [0.9, [1, 0.9]]}, {"acc": [0.9, [1, 0.9]]}),
        ({"py/object": "numpy.ndarray", "dtype": "float64", "values": 3.0}, 3.0, 3.0),
        *[
            (value, value, value)
            for value in (
                {"dtype": "float32", "value": 0.9, "lr": 1},
                {"dtype": "image", "value": 3},
                {"dtype": "float64", "value": "x"},
                {"dtype": "float64", "values": [1.0]},
                {"py/object": "numpy.ndarray", "dtype": "float64", "values": [1.0, 2.0]},
                {"py/object": "os.system", "dtype": "float64", "value": 1.0},
            )
        ],
    ],
)
def test_numbers_of_numpy_and_tuples_are_read(value, once, twice):
    assert without_pickles(value) == once
    assert without_pickles(value, twice=True) == twice
