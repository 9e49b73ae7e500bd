"""Values that JSON lacks are read back from a record as they were, and no text in it is imported or called."""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import math
import re
import types
import uuid
import zoneinfo

import numpy as np
import pytest
import torch

from sacristan.observers.file.recorded_values import Opaque, comes_back, is_form_of, opaque_in, read_back
from sacristan.observers.file.sacred_form import plain


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Options:
    lr: float = 0.1
    sizes: tuple = (1, 2)


Point = collections.namedtuple("Point", "x y")
UTC = datetime.UTC
BACK = {
    "int keys": {0: 1.0, 1: 2.5},
    "float keys": {0.5: 1, math.inf: 2},
    "bool keys": {True: 1, False: 0},
    "None as a key": {None: 1},
    "tuple keys": {(0, (1, "a")): "b"},
    "bytes as keys": {b"a": 1},
    "set as a key": {frozenset({1}): 2},
    "keys of two kinds": {0: "a", "0": "b"},
    "nested keys": {"a": {1: [{2: 3}]}},
    "key like a tag": {"py/x": 1},
    "set": {1, 2, 3},
    "empty set": set(),
    "set of tuples": {(1, (2, 3))},
    "frozenset": frozenset({"a", "b"}),
    "bytes": b"\x00\xffabc",
    "bytearray": bytearray(b"ab"),
    "date": datetime.date(2024, 1, 31),
    "datetime": datetime.datetime(2024, 1, 31, 1, 2, 3, 4, fold=1),
    "datetime in UTC": datetime.datetime(2024, 1, 31, tzinfo=UTC),
    "datetime in a zone": datetime.datetime(2024, 1, 31, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    "time": datetime.time(1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=-3))),
    "timedelta": datetime.timedelta(days=-1, seconds=3, microseconds=5),
    "time zone": zoneinfo.ZoneInfo("Asia/Tokyo"),
    "Decimal": decimal.Decimal("0.10"),
    "Fraction": fractions.Fraction(1, 3),
    "complex": complex(1, -math.inf),
    "UUID": uuid.UUID(int=5),
    "range": range(3, 10, 2),
    "slice": slice(1, None, 2),
    "deque": collections.deque([1, (2,)], maxlen=3),
    "pattern": re.compile("a+", re.IGNORECASE),
    "pattern of bytes": re.compile(b"a"),
    "namespace": types.SimpleNamespace(a={1}, b=argparse.Namespace(c=1)),
    "array": np.arange(4.0),
    "array of ints": np.arange(6, dtype=np.int8).reshape(2, 3),
    "long array": np.linspace(0, 1, 100),
    "long array of halves": np.arange(20, dtype=np.float16),
    "big-endian array": np.arange(20, dtype=">i4"),
    "Fortran array": np.asfortranarray(np.arange(20.0).reshape(4, 5)),
    "array of bools": np.array([True] * 20),
    "array of texts": np.array(["a", "bc"] * 10),
    "array of dates": np.array(["2024-01-31"], "M8[D]"),
    "array of durations": np.array([1, 2], "m8[s]"),
    "array of complex": np.array([1j]),
    "array of objects": np.array([None, {1}, "a"], object),
    "structured array": np.array([(1, 0.5), (2, math.nan)], [("a", "i4"), ("b", "f8")]),
    "empty array": np.zeros((0, 3)),
    "scalars in a set": {np.float64(1.5), np.datetime64("2024-01-31")},
    "dtype": np.dtype("float32"),
    "structured dtype": np.dtype([("a", "<i4")]),
    "within lists and dicts": [{"a": [b"a", datetime.date(2024, 1, 1), {0: {1}}]}],
    "numbers": [1, -0.0, 1e300, math.inf, math.nan, 10**30, True, None, "a"],
}
OPAQUE = {
    "enum": Colour.RED,
    "set of enums": {Colour.RED},
    "enum as a key": {Colour.RED: 1},
    "dataclass": Options(),
    "named tuple in a set": {Point(1, 2)},
    "exception": ValueError("a"),
    "device": torch.device("cpu"),
    "Ellipsis": ...,
}


def recorded(value):
    return json.loads(json.dumps(plain(value)))


@pytest.mark.parametrize("kind", BACK)
def test_value_comes_back_equal_and_of_its_type(kind):
    value = BACK[kind]
    found = read_back(recorded(value))
    assert type(found) is type(value)
    assert repr(found) == repr(value) or found == value
    assert comes_back(value)
    assert is_form_of(found, value)
    if isinstance(value, np.ndarray):
        assert (found.dtype.newbyteorder("="), found.shape) == (value.dtype.newbyteorder("="), value.shape)
        assert found.flags.f_contiguous == value.flags.f_contiguous


@pytest.mark.parametrize("kind", OPAQUE)
def test_object_of_other_code_stays_opaque_and_is_compared(kind):
    value = OPAQUE[kind]
    found = read_back(recorded(value))
    assert isinstance(found, Opaque)
    assert opaque_in([{"a": found}]) is found
    assert not comes_back(value)
    assert is_form_of(found, value)
    assert not is_form_of(found, Colour.BLUE)


def test_opaque_names_the_class():
    assert repr(read_back(recorded({Colour.RED: 1}))) == f"an object of {__name__}.Colour"


@pytest.mark.parametrize("value", [torch.ones(2), np.ma.masked_array([1, 2], [0, 1]), (i for i in ())])
def test_value_that_would_come_back_as_another_does_not_come_back(value):
    assert not comes_back(value)


def test_sets_are_recorded_in_the_same_order_whatever_the_hashes_are():
    names = [f"name{number}" for number in range(50)]
    assert plain(set(names)) == {"py/set": sorted(names)}
    assert plain({"a": frozenset(names)})["a"]["py/reduce"][1] == {"py/tuple": [sorted(names)]}


HOSTILE = [
    {"py/object": "os.system"},
    {"py/reduce": [{"py/type": "os.system"}, {"py/tuple": ["touch MARKER"]}]},
    {"py/reduce": [{"py/function": "os.system"}, {"py/tuple": ["touch MARKER"]}]},
    {"py/function": "os.system"},
    {"py/type": "subprocess.Popen"},
    {"py/repr": "os/os.system('touch MARKER')"},
    {"py/object": "numpy.ndarray", "dtype": "object", "values": [{"py/repr": "os/os.system('touch MARKER')"}]},
    {"py/object": "numpy.ndarray", "dtype": "object", "values": "eJxLZGBg", "shape": [1]},
    {"py/object": "numpy.ndarray", "dtype": "float64", "values": "eJxLZGBg", "shape": [10**9]},
    {"py/object": "numpy.ndarray", "dtype": "[__import__('os').system('touch MARKER')]", "values": []},
    {"py/object": "builtins.complex", "py/newargs": {"py/tuple": [{"py/function": "os.system"}]}},
    {"py/object": "argparse.Namespace", "py/state": {"a": 1}},
    {"py/object": "datetime.date", "__reduce__": [{"py/type": "os.system"}, ["dG91Y2ggTUFSS0VS"]]},
    {"py/reduce": [{"py/function": "zoneinfo.ZoneInfo._unpickle"}, {"py/tuple": ["../../etc/passwd", 1]}]},
    {"py/set": [{"a": []}]},
    {"py/set": 3},
    {"py/b64": "%"},
    {"py/id": 1},
    {"py/tuple": [1], "py/object": "os.system"},
    {'json://{"py/function": "os.system"}': 1},
    {"json://[": 1},
]


@pytest.mark.parametrize("form", HOSTILE, ids=str)
def test_hostile_form_stays_opaque_and_runs_nothing(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(read_back(form), Opaque)
    assert list(tmp_path.iterdir()) == []
