"""Types of config entries: declared by an annotation, or else read off the default.

lr = 1e-3                                     a float (an int is converted)
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
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin

from ingredients.config.construct import import_module, import_object, is_dotted_path
from observers.record.object_names import object_name

__all__ = ["conform", "describe", "infer", "parts_of"]

_NAMES = {
    int: "an int",
    float: "a float",
    str: "a string",
    bool: "True or False",
    list: "a list",
    dict: "a dict",
    types.ModuleType: "the name of a module",
    pathlib.PurePath: "a path",
    None: "None",
    types.NoneType: "None",
}


def infer(default: Any) -> Any:
    """Return the type of an entry without an annotation.

    Args:
        default: The default of the entry.

    Returns:
        A type, or an annotation such as `list[float]` or `Callable`; `Any` after None, which tells nothing.
    """
    if default is None:
        return Any
    if isinstance(default, list | tuple):
        return _infer_list(default)
    for kind in (bool, int, float, str, dict, types.ModuleType, pathlib.PurePath):
        if isinstance(default, kind):
            return kind
    if object_name(default) is None:
        return Any
    return collections.abc.Callable if callable(default) else type(default)


def _infer_list(default: list | tuple) -> Any:
    kinds = {infer(item) for item in default} if all(map(_is_scalar, default)) else set()
    if kinds == {int, float}:
        return list[float]
    return types.GenericAlias(list, kinds.pop()) if len(kinds) == 1 else list


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float | str) or object_name(value) is not None


def parts_of(kind: Any) -> tuple:
    """Return the members of a union of types; of any other type, itself alone.

    Args:
        kind: A type or an annotation, such as `int | None`.
    """
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def conform(value: Any, kind: Any, entry: str = "") -> Any:
    """Return a value as a type takes it: an int as a float where one is expected, a dotted name as its object.

    Args:
        value: The value.
        kind: A type or an annotation.
        entry: Dotted name of the entry, for messages.

    Raises:
        TypeError: If the value is not of that type.
        ConfigError: If there is no object of that dotted name.
    """
    if kind is Any:
        return value
    kind = types.NoneType if kind is None else kind
    convert = _CONVERTERS.get(get_origin(kind) or kind)
    if convert is not None:
        return convert(value, kind, entry)
    value = _imported(value, kind, entry)
    if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    raise TypeError


def _imported(value: Any, kind: Any, entry: str) -> Any:
    """Return the object of a dotted name where an object of torch is expected, such as a dtype; else the value."""
    if isinstance(kind, type) and kind.__module__ == "torch" and isinstance(value, str) and is_dotted_path(value):
        return import_object(value, entry)
    return value


def _as_choice(value: Any, kind: Any, entry: str) -> Any:
    if any(type(value) is type(choice) and value == choice for choice in get_args(kind)):
        return value
    raise TypeError


def _as_list(value: Any, kind: Any, entry: str) -> list:
    if not isinstance(value, list | tuple):
        raise TypeError
    inner = get_args(kind)
    return [conform(item, inner[0], entry) for item in value] if inner else list(value)


def _as_dict(value: Any, kind: Any, entry: str) -> dict:
    if isinstance(value, dict):
        return value
    raise TypeError


def _as_float(value: Any, kind: Any, entry: str) -> float:
    if type(value) is int:
        return float(value)
    if isinstance(value, float):
        return value
    raise TypeError


def _as_path(value: Any, kind: Any, entry: str) -> pathlib.PurePath:
    if isinstance(value, str):
        return pathlib.Path(value)
    if isinstance(value, kind):
        return value
    raise TypeError


def _as_module(value: Any, kind: Any, entry: str) -> types.ModuleType:
    if isinstance(value, str) and all(map(str.isidentifier, value.split("."))):
        return import_module(value, entry)
    if isinstance(value, kind):
        return value
    raise TypeError


def _as_callable(value: Any, kind: Any, entry: str) -> Any:
    """Return a class or function, given itself or by its dotted name."""
    if isinstance(value, str) and is_dotted_path(value):
        value = import_object(value, entry)
    if callable(value) and ((get_origin(kind) or kind) is not type or _is_class(value, get_args(kind))):
        return value
    raise TypeError


def _is_class(value: Any, bounds: tuple) -> bool:
    bound = bounds[0] if bounds and isinstance(bounds[0], type) else object
    return isinstance(value, type) and issubclass(value, bound)


def _as_member(value: Any, kind: Any, entry: str) -> Any:
    """Return a value as the member of a union that has its exact type, or else as the first that takes it."""
    kinds = get_args(kind)
    exact = [each for each in kinds if type(value) is each]
    for each in exact or kinds:
        try:
            return conform(value, each, entry)
        except TypeError:
            continue
    raise TypeError


# Types that need more than `isinstance`, each with a function of value, type and entry.
_CONVERTERS: dict[Any, Callable[[Any, Any, str], Any]] = {
    Literal: _as_choice,
    Union: _as_member,
    types.UnionType: _as_member,
    list: _as_list,
    dict: _as_dict,
    float: _as_float,
    type: _as_callable,
    collections.abc.Callable: _as_callable,
    types.ModuleType: _as_module,
    pathlib.PurePath: _as_path,
}


def describe(kind: Any) -> str:
    """Return a type in words, for a message: "a float", "a string or None", "one of off, float16".

    Args:
        kind: A type or an annotation.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in args)
    if origin is list:
        return "a list of " + describe(args[0]).removeprefix("an ").removeprefix("a ") + "s"
    if len(parts_of(kind)) > 1:
        return " or ".join(map(describe, parts_of(kind)))
    if (origin or kind) in (type, collections.abc.Callable):
        return f"{_describe_callable(kind, args)} by its dotted name"
    return str(_NAMES.get(origin or kind) or getattr(kind, "__name__", kind))


def _describe_callable(kind: Any, args: tuple) -> str:
    if get_origin(kind) is type and isinstance(args[0], type):
        return f"a subclass of {args[0].__name__}"
    return "a class" if kind is type else "a class or function"
