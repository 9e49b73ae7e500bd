"""Arrays of numbers in raw BSON."""

from datetime import datetime, timedelta

import bson
import numpy as np
import pytest

from sacristan.runs.stores.mongo.batches import decode_arrays
from sacristan.runs.stores.series import series_of

START = datetime(2026, 1, 2, 3, 4, 5, 678_000)
ARRAYS = {
    "doubles": [float(number) / 7 for number in range(12_345)],
    "ints": list(range(-5, 1_005)),
    "large ints": [2**40 + number for number in range(11)],
    "dates": [START + timedelta(milliseconds=17 * number) for number in range(101)],
    "one": [1.5],
    "odd doubles": [float("nan"), float("inf"), -0.0],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numbers_are_those_that_bson_decodes(name):
    found = decode_arrays(bson.encode({"_id": bson.ObjectId(), "x": ARRAYS[name], "é": "text"}))
    assert found["é"] == "text"
    expected = np.array(ARRAYS[name], "M8[ms]" if name == "dates" else None)
    np.testing.assert_array_equal(found["x"], expected)


@pytest.mark.parametrize(
    "odd",
    [
        [],
        [1, 2.0],
        [1.0, "a"],
        [1.0, None, 2.0],
        [2**40, 1],
        [1, 2**40],
        [[1.0], [2.0]],
        [1] * 12 + [2**40] + [1] * 3,
        [START, 1.0],
        [True],
    ],
)
def test_other_arrays_are_lists(odd):
    document = {"run_id": 1, "x": odd, "sub": {"x": [1.0]}, "data": b"\0\1", "none": None, "flag": False, "y": [2.5]}
    found = decode_arrays(memoryview(bson.encode(document)))
    assert found.pop("y").tolist() == document.pop("y")
    assert found == document


def test_documents_of_kinds_that_are_not_known_are_decoded_all_the_same():
    document = {"x": [1.0, 2.0], "pattern": bson.Regex("a.*")}
    assert decode_arrays(bson.encode(document)) == document


@pytest.mark.parametrize(
    "steps", [[0, 1, 5], [0, 0.5, 1], [0.0, 1.0, float("inf")], [1e300, 0.0, 1.0], [], ["a", 1, 2]]
)
@pytest.mark.parametrize("start", [START, None])
def test_series_of_arrays_is_that_of_lists(steps, start):
    entry = {"steps": steps, "values": [1.5, float("nan"), 3.0], "timestamps": ARRAYS["dates"][:2]}
    slow, fast = series_of(entry, start), series_of(decode_arrays(bson.encode(entry)), start)
    for name in ("steps", "values", "times"):
        np.testing.assert_array_equal(getattr(slow, name), getattr(fast, name))
        assert getattr(slow, name).dtype == getattr(fast, name).dtype
