"""Values read back from a record, without code of the record or of its author.

Sacred's serializer describes whatever JSON lacks: `{"py/set": [1, 2]}`, `{"json://0": 1.0}` for a dict with the key 0,
or `{"py/object": "nets.Options", "lr": 0.1}`. Its decoder imports and calls what such a text names. This module knows
a closed list of kinds of Python and NumPy instead; any other becomes an `Opaque`, which can only be compared.
"""

from __future__ import annotations

import argparse
import ast
import base64
import collections
import dataclasses
import datetime
import decimal
import fractions
import json
import re
import types
import uuid
import zlib
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from sacristan.configs.packages import numpy as np
from sacristan.observers.file.sacred_form import in_fixed_order, plain
from sacristan.observers.record.object_names import object_name

_TAGS = frozenset(
    f"py/{name}"
    for name in (
        *("b64", "b85", "bytes", "function", "id", "initargs", "iterator", "mod", "newargs", "newargsex", "newobj"),
        *("object", "property", "reduce", "ref", "repr", "seq", "set", "state", "tuple", "type"),
    )
)
_KEY = "json://"


@dataclasses.dataclass(frozen=True, eq=False)
class Opaque:
    """A recorded object that cannot be made without code of its author."""

    form: Any

    @property
    def kind(self) -> str:
        """The dotted name of its class, as far as the record tells."""
        match = re.search(r'"py/(?:object|type|function)": "([\w.<>]+)"', json.dumps(self.form).replace('\\"', '"'))
        return match[1] if match else "an unknown class"

    def __repr__(self) -> str:
        return f"an object of {self.kind}"


def is_recorded_object(form: Mapping[Any, Any]) -> bool:
    """Tell whether a mapping of a record describes an object."""
    return not _TAGS.isdisjoint(form)


def read_back(form: Any) -> Any:
    """Return the value that a recorded form stands for; objects that cannot be made become `Opaque`."""
    if isinstance(form, list):
        return [read_back(item) for item in form]
    if not isinstance(form, dict):
        return form
    try:
        if not is_recorded_object(form):
            return {_key(key): read_back(item) for key, item in form.items()}
        return _made(form)
    except Exception:  # whatever a constructor raises about a form that is none of its own
        return Opaque(form)


def opaque_in(value: Any) -> Opaque | None:
    """Return the first `Opaque` in the dicts and lists of a value; None without one."""
    if isinstance(value, Opaque):
        return value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return next(filter(None, map(opaque_in, items)), None)


def is_form_of(recorded: Any, value: Any) -> bool:
    """Tell whether a value that was read back, with or without `Opaque`, has the recorded form of another value."""
    return _comparable(_form(recorded)) == _comparable(plain(value))


def comes_back(value: Any) -> bool:
    """Tell whether a value is read back equal, with the same types; texts, paths, classes and functions count."""
    return _is_same(read_back(json.loads(json.dumps(plain(value)))), value)


def _form(value: Any) -> Any:
    if isinstance(value, Opaque):
        return value.form
    if isinstance(value, Mapping):
        converted = plain(dict.fromkeys(value))
        return dict(zip(converted, map(_form, value.values()), strict=True))
    return list(map(_form, value)) if isinstance(value, list) else plain(value)


def _comparable(form: Any) -> str:
    return json.dumps(in_fixed_order(_without_tuples(form)), sort_keys=True)


def _without_tuples(form: Any) -> Any:
    """Return a form with tuples as lists, as stores read it."""
    if isinstance(form, dict):
        if form.keys() == {"py/tuple"}:
            return _without_tuples(form["py/tuple"])
        return {key: _without_tuples(item) for key, item in form.items()}
    return list(map(_without_tuples, form)) if isinstance(form, list) else form


def _is_same(restored: Any, value: Any) -> bool:
    if isinstance(value, str | PurePath) or object_name(value) is not None:
        return True
    if isinstance(value, Mapping):
        return (
            isinstance(restored, dict)
            and {(type(key), key) for key in restored} == {(type(key), key) for key in value}
            and all(_is_same(restored[key], value[key]) for key in value)
        )
    if isinstance(value, list | tuple) and isinstance(restored, list):  # Sacred makes a list of each tuple
        return len(restored) == len(value) and all(map(_is_same, restored, value))
    if type(restored) is not type(value):  # an enum of numbers is recorded, and compares, as its number
        return isinstance(value, np.generic | int | float) and restored == value
    if isinstance(value, np.ndarray):
        return (restored.dtype.newbyteorder("="), restored.shape) == (value.dtype.newbyteorder("="), value.shape) and (
            _comparable(plain(restored)) == _comparable(plain(value.astype(restored.dtype)))
        )
    return restored == value or _comparable(plain(restored)) == _comparable(plain(value))


# ---------------------------------------------------------------------- the kinds


def _key(key: Any) -> Any:
    if not isinstance(key, str) or not key.startswith(_KEY):
        return key
    return _hashable(_made(json.loads(key[len(_KEY) :])))


def _made(form: Any) -> Any:
    """Return the value of a form; fail if anything in it is of no known kind."""
    if isinstance(form, list):
        return [_made(item) for item in form]
    if not isinstance(form, dict):
        return form
    if not is_recorded_object(form):
        return {_key(key): _made(item) for key, item in form.items()}
    match form:
        case {"py/tuple": list(items)} if len(form) == 1:
            return tuple(map(_made, items))
        case {"py/set": list(items)} if len(form) == 1:
            return {_hashable(_made(item)) for item in items}
        case {"py/b64": str(text)} if len(form) == 1:
            return base64.b64decode(text, validate=True)
        case {"py/object": str(name), **state}:
            return _array(name, state) if name.startswith("numpy.") else _OBJECTS[name](state)
        case {"py/reduce": [{"py/type": str(name)}, arguments, *rest]} if len(form) == 1:
            return _CALLS[name](_arguments(arguments), *rest)
        case {"py/reduce": [{"py/function": "zoneinfo.ZoneInfo._unpickle"}, arguments]} if len(form) == 1:
            import zoneinfo

            return zoneinfo.ZoneInfo(_arguments(arguments)[0])
    raise ValueError(form)


def _arguments(form: Any) -> list[Any]:
    """Return arguments; stores read their tuple as a list."""
    return list(_made(form))


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _fields(state: dict[str, Any]) -> dict[str, Any]:
    if is_recorded_object(state):
        raise ValueError(state)
    return {name: _made(item) for name, item in state.items()}


def _moment(kind: type) -> Callable[[dict[str, Any]], Any]:
    """Return how a date or a time is made of the bytes in which Python pickles it, and its time zone."""

    def make(state: dict[str, Any]) -> Any:
        (_, (text, *zone)) = state["__reduce__"]
        return kind(base64.b64decode(text, validate=True), *map(_made, zone))

    return make


_OBJECTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "argparse.Namespace": lambda state: argparse.Namespace(**_fields(state)),
    "builtins.complex": lambda state: complex(*_arguments(state["py/newargs"])),
    "datetime.date": _moment(datetime.date),
    "datetime.datetime": _moment(datetime.datetime),
    "datetime.time": _moment(datetime.time),
    "re.Pattern": lambda state: re.compile(_made(state["pattern"]), state["flags"]),
    "uuid.UUID": lambda state: uuid.UUID(hex=state["hex"]),
}
_CALLS: dict[str, Callable[..., Any]] = {
    "builtins.bytearray": lambda arguments: bytearray(*arguments),
    "builtins.frozenset": lambda arguments: frozenset(map(_hashable, *arguments)),
    "builtins.range": lambda arguments: range(*arguments),
    "builtins.slice": lambda arguments: slice(*arguments),
    "collections.deque": lambda arguments, _, items: collections.deque(_made(items), *arguments[1:]),
    "datetime.timedelta": lambda arguments: datetime.timedelta(*arguments),
    "datetime.timezone": lambda arguments: datetime.timezone(*arguments),
    "decimal.Decimal": lambda arguments: decimal.Decimal(*arguments),
    "fractions.Fraction": lambda arguments: fractions.Fraction(*arguments),
    "types.SimpleNamespace": lambda _, fields={}: types.SimpleNamespace(**_fields(fields)),
}


def _array(name: str, state: dict[str, Any]) -> Any:
    """Return an array, a scalar or a type of NumPy."""
    text = state["dtype"]
    dtype = np.dtype(ast.literal_eval(text) if text.startswith(("[", "{")) else text)
    if name.startswith(("numpy.dtype", "numpy.dtypes.")):
        return dtype
    if "value" in state:
        return dtype.type(_made(state["value"]))
    if name != "numpy.ndarray" or "base" in state:
        raise ValueError(name)
    values, shape = state["values"], state.get("shape")
    if isinstance(values, str):
        array = _unpacked(values, dtype, tuple(state["shape"]), state)
    else:
        rows = _made(values)
        array = np.array(_records(rows) if dtype.names else rows, dtype, order=state.get("order", "C"))
        array = array if shape is None else array.reshape(shape)
    array.flags.writeable = state.get("writeable", True)
    return array


def _records(rows: Any) -> Any:
    """Return rows of a structured array as tuples, at the depth where NumPy expects them."""
    return [_records(row) if isinstance(row, list) and isinstance(row[0], list) else tuple(row) for row in rows]


def _unpacked(text: str, dtype: np.dtype, shape: tuple[int, ...], state: dict[str, Any]) -> np.ndarray:
    """Return the array of compressed bytes; of objects, they are a list in JSON."""
    data = base64.b64decode(text, validate=True)
    if dtype.hasobject:
        return np.array(json.loads(zlib.decompress(data)), dtype).reshape(shape)
    size = int(np.prod(shape)) * dtype.itemsize
    data = zlib.decompressobj().decompress(data, size + 1)
    if byteorder := state.get("byteorder"):
        dtype = dtype.newbyteorder(byteorder)
    return np.ndarray(shape, dtype, bytearray(data), order=state.get("order", "C")).copy("K")
