"""Accepted values of a config entry: declared by an annotation, or else derived from the default.

lr = 1e-3                                     a float (an int is taken as one)
path: str | None = None                       a string or None
dtype: Literal["off", "float16"] = "off"      one of the choices
net = torch.nn.GRU                            a class or function; on the command line by its dotted name
options = {}                                  a dict with keys of the user's choosing
callback = None                               anything
"""

from __future__ import annotations

import collections.abc
import pathlib
import types
from typing import Any, Literal, Union, get_args, get_origin

from ingredients.config.construct import import_module, import_object, is_dotted_path
from observers.record.object_names import object_name

__all__ = ["conform", "describe", "infer"]

_NAMES = {
    int: "an int",
    float: "a float",
    str: "a string",
    bool: "True or False",
    list: "a list",
    dict: "a dict",
    types.ModuleType: "the name of a module",
    pathlib.PurePath: "a path",
}


def infer(default: Any) -> Any:
    """Return the type that values in the place of `default` must have; `Any` after None."""
    if default is None:
        return Any
    if isinstance(default, list | tuple):
        inner = {infer(item) for item in default} if all(_is_scalar(item) for item in default) else set()
        if inner == {int, float}:
            return list[float]
        return types.GenericAlias(list, inner.pop()) if len(inner) == 1 else list
    for kind in (bool, int, float, str, dict, types.ModuleType, pathlib.PurePath):
        if isinstance(default, kind):
            return kind
    if object_name(default) is None:
        return Any
    return collections.abc.Callable if callable(default) else type(default)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float | str) or object_name(value) is not None


def conform(value: Any, kind: Any, entry: str = "") -> Any:
    """Return `value` as `kind`: an int as the float it stands for, a dotted name as the class or function.

    Args:
        value: The value.
        kind: What it should be.
        entry: The entry that it is for, for messages.

    Raises:
        TypeError: If `value` is not of `kind`.
        ConfigError: If there is nothing under a dotted name.
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
        return _conform_union(value, args, entry)
    if origin is list:
        return [conform(item, args[0], entry) for item in conform(value, list)]
    if origin is dict:
        return conform(value, dict)
    if (origin or kind) in (type, collections.abc.Callable):
        return _conform_callable(value, origin or kind, args, entry)
    if kind is types.ModuleType and isinstance(value, str) and all(map(str.isidentifier, value.split("."))):
        return import_module(value, entry)
    if isinstance(kind, type) and isinstance(value, str) and is_dotted_path(value) and kind.__module__ == "torch":
        value = import_object(value, entry)
    if kind is pathlib.PurePath and isinstance(value, str):
        return pathlib.Path(value)
    if kind is float and type(value) is int:
        return float(value)
    if kind is list and isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    raise TypeError


def _conform_callable(value: Any, kind: Any, args: tuple, entry: str) -> Any:
    """Return a class or function, given itself or by its dotted name."""
    if isinstance(value, str) and is_dotted_path(value):
        value = import_object(value, entry)
    bound = args[0] if kind is type and args and isinstance(args[0], type) else object
    if callable(value) and (kind is not type or (isinstance(value, type) and issubclass(value, bound))):
        return value
    raise TypeError


def _conform_union(value: Any, kinds: tuple, entry: str) -> Any:
    exact = [kind for kind in kinds if type(value) is kind]
    for kind in exact or kinds:
        try:
            return conform(value, kind, entry)
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
    if (origin or kind) in (type, collections.abc.Callable):
        of = f"a subclass of {args[0].__name__}" if origin is type and isinstance(args[0], type) else ""
        return f"{of or ('a class' if kind is type else 'a class or function')} by its dotted name"
    return _NAMES.get(kind, getattr(kind, "__name__", str(kind)))
