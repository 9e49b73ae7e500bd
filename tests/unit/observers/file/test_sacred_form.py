import collections
import dataclasses
import enum
import json
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from sacred.serializer import restore

from sacristan.observers.file.sacred_form import plain
from sacristan.observers.record.json_text import MAX_NOTED_LEVELS, is_deeper, parse_json


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


def array_form(dtype, values):
    return {"py/object": "numpy.ndarray", "dtype": dtype, "values": values}


PAIRS = [("a", int), ("b", float)]
HALF_MASKED = np.ma.array([1.5, -7e300], mask=[False, True])


@dataclasses.dataclass
class Holder:
    inner: Any


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.ma.masked, None),
        (np.ma.array(3.0, mask=True), None),
        (np.ma.array(3.0, mask=False), 3.0),
        (HALF_MASKED, array_form("object", [1.5, None])),
        (np.ma.array([1, 2]), array_form("int64", [1, 2])),
        (np.ma.array([[1, 2]], mask=[[True, False]]), array_form("object", [[None, 2]])),
        (np.ma.array(["a", "b"], mask=[True, False]), array_form("object", [None, "b"])),
        (np.ma.array(["2020-01-01"] * 2, "datetime64[ns]", mask=[0, 1]), array_form("datetime64[ns]", [ANY, None])),
        (
            np.ma.array([(1, 2.0)], PAIRS, mask=[(False, True)]),
            array_form("object", [{"py/tuple": [1, None]}]),
        ),
        (np.ma.array([(1, 2.0)], PAIRS, mask=[(False, True)])[0], {"a": 1, "b": None}),
        (np.array([(1, 2.0)], PAIRS)[0], {"a": 1, "b": 2.0}),
        ({"x": [HALF_MASKED]}, {"x": [array_form("object", [1.5, None])]}),
        (Holder(HALF_MASKED), {"py/object": f"{__name__}.Holder", "inner": array_form("object", [1.5, None])}),
        (np.array([np.ma.masked, 1], object), array_form("object", [None, 1])),
        (np.array({"a": np.float32(0.5)}, object), {"a": 0.5}),
        (np.array([0.5], np.longdouble), array_form("float64", [0.5])),
        (np.array([0.5], np.float16), array_form("float16", [0.5])),
        (torch.tensor([0.5], dtype=torch.bfloat16), array_form("float32", [0.5])),
        (torch.tensor([0.5]).to(torch.float8_e5m2), array_form("float32", [0.5])),
        (torch.tensor([1 + 2j]).conj().imag, array_form("float32", [-2.0])),
        (
            torch.tensor([[0.0, 0.5]]).to_sparse(),
            {"shape": [1, 2], "indices": array_form("int64", [[0], [1]]), "values": array_form("float32", [0.5])},
        ),
    ],
    ids=str,
)
def test_arrays_keep_their_values_and_no_masked_one(value, expected):
    assert json.loads(json.dumps(plain(value))) == expected


def restored(value):
    return restore(json.loads(json.dumps(plain(value))))


def test_tables_of_pandas_keep_texts_times_and_missing_values():
    import pandas

    berlin = pandas.to_datetime(["2020-01-01", None]).tz_localize("Europe/Berlin")
    columns = {
        "text": pandas.Series(["a", None]),
        "string": pandas.Series(["a", None], dtype="string"),
        "int": pandas.Series([1, None], dtype="Int64"),
        "bool": pandas.Series([True, None], dtype="boolean"),
        "category": pandas.Series(["a", None], dtype="category"),
        "time": pandas.Series(berlin),
        "naive": pandas.Series(pandas.to_datetime(["2020-01-01", None])),
        "duration": pandas.Series(pandas.to_timedelta(["1h", None])),
    }
    frame = restored(pandas.DataFrame(columns))
    for name, column in columns.items():
        for found in (restored(column).tolist(), restored(column.array).tolist(), frame[name].tolist()):
            assert found[0] == column.iloc[0], name
            assert pandas.isna(found[1]), name
    assert plain([pandas.NA, pandas.NaT]) == [None, None]
    assert restored(pandas.DataFrame({"x": [1, 2]})).x.tolist() == [1, 2]


def test_tensor_without_values_is_text_and_noted():
    odd: dict = {}
    assert plain({"x": torch.empty(2, device="meta")}, odd)["x"].startswith("tensor(...")
    assert list(odd) == ["x"]


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
