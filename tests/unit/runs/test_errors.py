"""The tree of errors, as `sacristan.runs.errors` draws it, and that nothing else leaves the package."""

import importlib
import pkgutil
import re

import pytest

from sacristan import runs
from sacristan.runs import errors

NAMES = [name for name in errors.__all__ if name.endswith("Error") and name != "RunsError"]


@pytest.mark.parametrize("name", NAMES)
def test_every_error_is_under_the_root(name):
    assert issubclass(getattr(errors, name), errors.RunsError)


def test_the_drawing_shows_the_tree():
    drawn, parents = {}, ["RunsError"]
    for depth, name, told in re.findall(r"^((?:│   )*)[├└]── (\w+) +(.*)", errors.__doc__, re.MULTILINE):
        level = 1 + len(depth) // 4
        parents[level:] = [name]
        builtin = re.search(r"; an? (\w+)$", told)
        drawn[name] = (parents[level - 1], *([builtin[1]] if builtin else []))
    assert drawn == {name: tuple(base.__name__ for base in getattr(errors, name).__bases__) for name in NAMES}


def test_no_other_module_has_errors_of_its_own():
    homes = [
        found.name
        for found in pkgutil.walk_packages(runs.__path__, "sacristan.runs.")
        if not found.name.endswith("__main__")
    ]
    classes = {
        thing for home in homes for thing in vars(importlib.import_module(home)).values() if isinstance(thing, type)
    }
    raised = {one for one in classes if issubclass(one, BaseException) and one.__module__.startswith("sacristan.runs.")}
    assert {one.__module__ for one in raised} == {"sacristan.runs.errors"}
