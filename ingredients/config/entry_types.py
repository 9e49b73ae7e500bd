"""Which values a config entry takes: declared by an annotation, or else read off the default.

lr = 1e-3                                     a float (an int is taken as one)
path: str | None = None                       a string or None
dtype: Literal["off", "float16"] = "off"      one of the choices
options = {}                                  a dict with keys of the user's choosing
callback = None                               anything
"""

from __future__ import annotations

import difflib
import types
from typing import Any, Literal, Union, get_args, get_origin

__all__ = ["conform", "describe", "infer", "nearest"]

_NAMES = {int: "an int", float: "a float", str: "a string", bool: "True or False", list: "a list", dict: "a dict"}


def infer(default: Any) -> Any:
    """Return the type that values in the place of `default` must have; `Any` after None."""
    if default is None:
        return Any
    if isinstance(default, list | tuple):
        inner = {infer(item) for item in default} if all(_is_scalar(item) for item in default) else set()
        if inner == {int, float}:
            return list[float]
        return types.GenericAlias(list, inner.pop()) if len(inner) == 1 else list
    for kind in (bool, int, float, str, dict):
        if isinstance(default, kind):
            return kind
    return Any


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def conform(value: Any, kind: Any) -> Any:
    """Return `value` as `kind`, an int as the float it stands for.

    Raises:
        TypeError: If `value` is not of `kind`.
    """
    if kind is Any:
        return value
    if kind is None or kind is type(None):
        if value is None:
            return None
        raise TypeError
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        if any(type(value) is type(choice) and value == choice for choice in args):
            return value
        raise TypeError
    if origin in (Union, types.UnionType):
        return _conform_union(value, args)
    if origin is list:
        return [conform(item, args[0]) for item in conform(value, list)]
    if origin is dict:
        return conform(value, dict)
    if kind is float and type(value) is int:
        return float(value)
    if kind is list and isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    raise TypeError


def _conform_union(value: Any, kinds: tuple) -> Any:
    exact = [kind for kind in kinds if type(value) is kind]
    for kind in exact or kinds:
        try:
            return conform(value, kind)
        except TypeError:
            continue
    raise TypeError


def describe(kind: Any) -> str:
    """Return in words what `kind` takes, for a message."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in args)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is dict:
        return _NAMES[dict]
    if origin is list:
        inner = describe(args[0])
        return "a list of " + inner.removeprefix("an ").removeprefix("a ") + "s"
    if kind is None or kind is type(None):
        return "None"
    return _NAMES.get(kind, getattr(kind, "__name__", str(kind)))


def nearest(name: str, known: list[str]) -> str | None:
    """Return the one of `known` dotted names that `name` was most likely meant to be, if any."""
    same_leaf = [other for other in known if other.rpartition(".")[2] == name.rpartition(".")[2]]
    if len(same_leaf) == 1:
        return same_leaf[0]
    scored = sorted(((_likeness(name, other), other) for other in known), reverse=True)
    return scored[0][1] if scored and scored[0][0] >= 0.6 else None


def _likeness(name: str, other: str) -> float:
    mine, theirs = name.split("."), other.split(".")
    if len(mine) == len(theirs):
        # Every part must be alike: a group in common says little about what was meant in it.
        parts = [_part_likeness(a, b) for a, b in zip(mine, theirs, strict=True)]
        return sum(parts) / len(parts) if min(parts) >= 0.5 else 0.0
    whole = _ratio(name, other) if len(mine) == 1 else 0.0
    return max(whole, 0.95 * _ratio(mine[-1], theirs[-1]))


def _part_likeness(a: str, b: str) -> float:
    return max(_ratio(a, b), 0.8 if a and b.startswith(a) else 0.0)


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a.lower(), b.lower()).ratio()
