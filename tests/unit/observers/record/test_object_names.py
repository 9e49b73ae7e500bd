"""The names that classes, functions and modules are recorded by."""

import functools
import json
import math
import re
import sys
import types
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch

from sacristan.ingredients.config.construct import import_object
from sacristan.observers.record.object_names import imported_main, named, object_name

BOTH = [lambda x: x - 1, lambda x: x + 1]  # two on a line


def double(x):
    """Return it twice."""
    return 2 * x


class Outer:
    class Inner:
        def method(self):
            """Do nothing."""


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (torch.nn.GRU, "torch.nn.modules.rnn:GRU"),
        (torch.relu, "torch:relu"),
        (torch.nn.functional.gelu, "torch._C._nn:gelu"),
        (torch.float16, "torch:float16"),
        (np.tanh, "numpy:tanh"),
        (np.float32, "numpy:float32"),
        (np.sum, "numpy:sum"),
        (math.sqrt, "math:sqrt"),
        (len, "builtins:len"),
        (dict.get, "builtins:dict.get"),
        (double, f"{__name__}:double"),
        (Outer.Inner.method, f"{__name__}:Outer.Inner.method"),
    ],
)
def test_object_name_leads_back_to_the_object(value, name):
    assert object_name(value) == name
    assert import_object(name, "entry") is value


@pytest.mark.parametrize(
    "value", [None, 3, 0.5, "text", [len], {}, functools.partial(max, 3), torch.nn.ReLU(), np.ones(2)]
)
def test_object_name_of_a_plain_value_is_none(value):
    assert object_name(value) is None


def test_object_name_of_a_module_is_its_own():
    assert object_name(torch.optim) == "torch.optim"


def test_object_name_of_a_lambda_is_its_source():
    assert object_name(lambda x, k=3: x**k) == "lambda x, k=3: x ** k"
    assert list(map(object_name, BOTH)) == ["lambda x: x - 1", "lambda x: x + 1"]
    factor = 3
    assert object_name(lambda x: factor * x) == "lambda x: factor * x"


def test_object_name_of_a_local_function_changes_with_its_source_alone():
    def make(first):
        if first:

            def local(x):
                return x + 1
        else:

            def local(x):
                # another comment
                return x + 2

        return local

    one, other = object_name(make(True)), object_name(make(False))
    assert one != other
    assert re.fullmatch(r".*:test_object_name_of_a_local_.*<locals>.make.<locals>.local [0-9a-f]{8}", one)
    assert object_name(make(True)) == one


def test_object_name_of_what_hides_behind_the_name_of_another_is_local():
    other = types.FunctionType(double.__code__, {}, "double")
    other.__module__ = __name__
    assert object_name(other).startswith(f"{__name__}:<locals>.double ")


def test_object_name_in_the_main_module_is_that_under_which_others_import_it(monkeypatch):
    main = types.ModuleType("__main__")
    main.__file__, main.__spec__ = "/somewhere/train.py", None
    main.Net = type("Net", (), {"__module__": "__main__"})
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert (imported_main(), object_name(main.Net)) == ("train", "train:Net")
    assert import_object("train:Net", "net") is import_object("train.Net", "net") is main.Net


def test_named_replaces_them_at_every_depth():
    value = {"a": [len, {"b": json}], "c": (math.sqrt, 1), "d": PurePosixPath("x/y"), "e": 0.5}
    assert named(value) == {"a": ["builtins:len", {"b": "json"}], "c": ("math:sqrt", 1), "d": "x/y", "e": 0.5}
