import collections
import enum
import json

import numpy as np
import pytest
import torch

from observers.file.sacred_form import plain


class Textless:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Level(enum.IntEnum):
    HIGH = 3


Pair = collections.namedtuple("Pair", "low high")

WITHIN_ITSELF: list = [1]
WITHIN_ITSELF.append(WITHIN_ITSELF)
SHARED = [1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.9), 0.9),
        (np.float32(0.5), 0.5),
        (np.longdouble(3), 3.0),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array(2.5), 2.5),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (torch.tensor(7), 7),
        (torch.tensor(True), True),
        ((0.8, 0.95), [0.8, 0.95]),
        (Pair(1, 2), [1, 2]),
        (torch.Size((2, 3)), [2, 3]),
        ({"acc": torch.tensor(0.5), "ci": (0.8, (0.9,))}, {"acc": 0.5, "ci": [0.8, [0.9]]}),
        (np.str_("x"), "x"),
        (Level.HIGH, 3),
        ([SHARED, SHARED], [[1], [1]]),
        (np.array([1.0, 2.0]), {"py/object": "numpy.ndarray", "dtype": "float64", "values": [1.0, 2.0]}),
        (np.arange(4)[1:3], {"py/object": "numpy.ndarray", "dtype": "int64", "values": [1, 2]}),
        (torch.tensor([1, 2]), {"py/object": "numpy.ndarray", "dtype": "int64", "values": [1, 2]}),
        ({1: None, (1, 2): np.int8(4)}, {"json://1": None, 'json://{"py/tuple": [1, 2]}': 4}),
        ({2, 1}, {"py/set": [1, 2]}),
        (WITHIN_ITSELF, [1, {"py/id": 0}]),
        ({"bad": Textless()}, {"bad": {"py/object": f"{__name__}.Textless"}}),
    ],
)
def test_values_are_json_and_the_same_when_taken_twice(value, expected):
    found = plain(value)
    assert json.dumps(found) == json.dumps(expected)
    assert json.dumps(plain(found)) == json.dumps(expected)


def test_tensor_that_numpy_does_not_know_is_text():
    assert plain([torch.eye(2).to_sparse()])[0].startswith("tensor(indices=")
