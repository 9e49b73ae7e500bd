import pytest

from sacristan.runs.query.serialized import without_pickles

SCALAR = {"py/object": "numpy.float64", "dtype": "float64", "value": 0.9}
BARE = {"dtype": "float64", "value": 0.9}


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
