"""Values of points as settings: Sacred reads back what was written."""

import math

import pytest
from sacred.arg_parser import get_config_updates

from sacristan.runs import SweepError
from sacristan.runs.sweeps import setting_words
from sacristan.runs.sweeps.spec import read_spec

TEXTS = [
    "a b",
    "it's",
    'say "hi"',
    "a=b",
    "=",
    "",
    " lead",
    "trail\t",
    "é漢",
    "a\nb",
    "-x",
    "{}",
    "{[]: 1}",
    "'q'",
    "#c",
]
LITERALS = ["1e-3", "None", "True", "[1", "[1]", "7", "nan", "inf", "(" * 300]
OTHERS = [None, True, 1e-3, 7, [1, "a b"], {"a": 1, "b": [True, "y z"]}, math.inf, [-math.inf, {"a": math.inf}]]


@pytest.mark.parametrize("value", [*TEXTS, *LITERALS, *OTHERS], ids=lambda value: repr(value)[:20])
def test_a_value_is_read_as_it_was(value):
    updates, named = get_config_updates(setting_words({"entry": value}))
    assert (updates, named) == ({"entry": value}, [])
    assert type(updates["entry"]) is type(value)


def test_nan_is_refused():
    with pytest.raises(SweepError, match=r"parameters\.x\.values\[1\]: got nan, expected a number that equals itself"):
        read_spec({"method": "grid", "parameters": {"x": {"values": [1.0, math.nan]}}})
