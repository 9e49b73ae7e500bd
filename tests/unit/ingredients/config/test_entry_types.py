"""Values that an entry accepts, by its annotation or its default."""

import math
import types
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, Literal, Optional, Union

import pytest
import torch

from sacristan.ingredients.config.entry_types import conform, describe, infer

DTYPE = Literal["off", "float16"]


@pytest.mark.parametrize(
    ("default", "kind"),
    [
        (None, Any),
        (True, bool),
        (3, int),
        (0.5, float),
        ("adam", str),
        ({}, dict),
        ({"a": 1}, dict),
        ([], list),
        ([1, 2], list[int]),
        ((1, 2), list[int]),
        ([1, 2.5], list[float]),
        (["a"], list[str]),
        ([True], list[bool]),
        ([1, "a"], list),
        ([True, 1.5], list),
        ([[1], [2]], list),
        ([{"a": 1}], list),
        (object, Callable),
        (object(), Any),
        ([int, len], list[Callable]),
        (math, types.ModuleType),
        (torch.float16, torch.dtype),
        (Path("x"), PurePath),
    ],
)
def test_infer_default_gives_its_type(default, kind):
    assert infer(default) == kind


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("x", Any),
        (None, None),
        (None, type(None)),
        (True, bool),
        (3, int),
        (0.5, float),
        ("a", str),
        ({"a": 1}, dict),
        ({"a": 1}, dict[str, int]),
        ([1, 2], list[int]),
        ([], list[int]),
        ([1, "a"], list),
        ([{"a": 1}], list[dict]),
        ("off", DTYPE),
        (2, Literal[1, 2]),
        (None, float | None),
        ("a", str | list[str] | None),
        (["a"], Union[str, list[str]]),  # noqa: UP007
        (None, Optional[int]),  # noqa: UP045
        ([0.5], Literal["balanced"] | list[float] | None),
    ],
)
def test_conform_fitting_value_is_kept(value, kind):
    found = conform(value, kind)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1, float, 1.0),
        (1e6, int, 1000000),
        (1e6, int | None, 1000000),
        ([1.0, 2], list[int], [1, 2]),
        (1, float | None, 1.0),
        ([1, 2.5], list[float], [1.0, 2.5]),
        ((1, 2), list, [1, 2]),
        ((1, 2), list[float], [1.0, 2.0]),
        ([1], Literal["balanced"] | list[float] | None, [1.0]),
    ],
)
def test_conform_int_or_tuple_becomes_what_it_stands_for(value, kind, expected):
    found = conform(value, kind)
    assert repr(found) == repr(expected)


def test_conform_union_takes_the_exact_type_first():
    assert repr(conform(1, float | int)) == "1"
    assert repr(conform(1.0, int | float)) == "1.0"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, None),
        (True, int),
        (True, float),
        (False, int | None),
        (1, bool),
        (3.7, int),
        (3.5, int),
        (math.inf, int),
        ("1", int),
        ("abc", float),
        ("", float),
        (None, float),
        (1, str),
        ("a", list),
        ({}, list),
        ([], dict),
        ([1, "a"], list[int]),
        ([1, None], list[int]),
        ([True], list[int]),
        ([[1]], list[int]),
        ("auto", DTYPE),
        (False, DTYPE),
        (True, Literal[1]),
        (1.0, Literal[1]),
        ("x", int | None),
        (["a"], Literal["balanced"] | list[float] | None),
    ],
)
def test_conform_other_value_refused(value, kind):
    with pytest.raises(TypeError):
        conform(value, kind)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "an int"),
        (float, "a float"),
        (str, "a string"),
        (bool, "True or False"),
        (list, "a list"),
        (dict, "a dict"),
        (dict[str, int], "a dict"),
        (None, "None"),
        (float | None, "a float or None"),
        (Optional[int], "an int or None"),  # noqa: UP045
        (list[int], "a list of ints"),
        (list[float], "a list of floats"),
        (list[dict], "a list of dicts"),
        (DTYPE, "one of off, float16"),
        (Literal["balanced"] | list[float] | None, "one of balanced or a list of floats or None"),
        (complex, "complex"),
    ],
)
def test_describe_kind_in_words(kind, text):
    assert describe(kind) == text
