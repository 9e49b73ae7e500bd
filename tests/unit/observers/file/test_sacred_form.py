import collections
import enum
import json

import numpy as np
import pytest
import torch

from observers.file.sacred_form import plain
from observers.record.json_text import MAX_NOTED_LEVELS, is_deeper, parse_json


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


class Unlisted(dict):
    def items(self):
        raise RuntimeError("no entries")


def nested(num_levels):
    value: list = []
    for _ in range(num_levels - 1):
        value = [value]
    return value


HUGE = 10**5000


@pytest.mark.parametrize(
    ("value", "expected", "name", "reason"),
    [
        (HUGE, hex(HUGE), "v", "an integer of more than 4,300 digits"),
        (-HUGE, hex(-HUGE), "v", "an integer of more than 4,300 digits"),
        ({HUGE: 1}, {hex(HUGE): 1}, f"v.{hex(HUGE)}"[:77] + "...", "as a key, an integer of more than 4,300 digits"),
        ([1, {"a": Unlisted(b=2)}], [1, {"a": "{'b': 2}"}], "v.1.a", "RuntimeError: no entries"),
        ({(HUGE, 1): 2}, {"<tuple>": 2}, "v.<tuple>", "as a key, "),
    ],
    ids=["integer", "negative integer", "key", "no entries", "tuple as a key"],
)
def test_entry_that_json_cannot_hold_is_text_and_the_others_stay(value, expected, name, reason):
    odd = {}
    found = plain({"before": 1, "v": value, "after": [2]}, odd)
    assert parse_json(json.dumps(found)) == {"before": 1, "v": expected, "after": [2]}
    [(odd_name, odd_reason)] = odd.items()
    assert odd_name == name
    assert odd_reason.startswith(reason)
    assert plain(found) == found


def test_integer_that_python_writes_stays():
    largest = 10**4299
    assert parse_json(json.dumps(plain([largest, -largest]))) == [largest, -largest]


def test_tree_is_cut_at_a_depth():
    odd = {}
    assert plain(nested(MAX_NOTED_LEVELS), odd) == nested(MAX_NOTED_LEVELS)
    assert not odd
    found = plain({"a": nested(100_000)}, odd)
    assert is_deeper(found, MAX_NOTED_LEVELS - 1)
    assert not is_deeper(found, MAX_NOTED_LEVELS)
    assert list(odd.values()) == ["more than 180 levels deep"]
    assert plain(found) == found


def test_value_that_is_twice_within_itself_is_no_endless_tree():
    both: list = []
    both.extend([both, {"again": both}])
    assert plain({"v": both}) == {"v": [{"py/id": 1}, {"again": {"py/id": 1}}]}
