"""The tree of errors, as `sacristan.observers.errors` draws it."""

import re

import pytest

from sacristan.observers import errors

NAMES = [name for name in errors.__all__ if name != "ObserversError"]


@pytest.mark.parametrize("name", NAMES)
def test_every_error_is_under_the_root(name):
    assert issubclass(getattr(errors, name), errors.ObserversError)


def test_the_drawing_shows_the_tree():
    parents, drawn = {0: "ObserversError"}, {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"([│ ]*)[├└]── (\w+) +(.*)", line)
        if match:
            depth = len(match[1]) // 4 + 1
            parents[depth] = match[2]
            builtins = match[3].rpartition(";")[2] if "; a" in match[3] else ""
            drawn[match[2]] = (parents[depth - 1], *re.findall(r"\ban? (\w+)", builtins))
    bases = {name: tuple(base.__name__ for base in getattr(errors, name).__bases__) for name in NAMES}
    assert drawn == bases
