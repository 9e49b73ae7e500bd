"""Types of config entries: declared by an annotation, or else read off the default.

lr = 1e-3                                     a float (an int is converted)
epochs = 10                                   an int (a whole float is converted)
path: str | None = None                       a string or None
dtype: Literal["off", "float16"] = "off"      one of the choices
net = torch.nn.GRU                            a class or function; on the command line by its dotted name
options = {}                                  a dict with keys of the user's choosing
callback = None                               anything

That holds for annotations and for what the lab ships. In a script's own scopes, a default without an annotation says no
more than a kind (`adopt`).
"""

from __future__ import annotations

import ast
import collections.abc
import contextlib
import contextvars
import json
import pathlib
import re
import shlex
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from sacred.config.utils import undogmatize

from sacristan.configs.files import load_yaml
from sacristan.configs.nearest import nearest, question
from sacristan.ingredients.config.construct import import_module, import_object, is_dotted_path
from sacristan.ingredients.errors import ConfigError
from sacristan.observers.record.object_names import named, object_name

# Values of settings as they stand on the command line, by dotted name.
_typed: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("typed", default={})  # noqa: B039

_YES, _NO = ("yes", "y", "on", "true", "t"), ("no", "n", "off", "false", "f")
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


def literal(text: str) -> Any:
    """Return the value of a command-line text: a Python literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


@contextlib.contextmanager
def typed(settings: Mapping[str, str]) -> Iterator[None]:
    """Show settings in messages of the block as typed: `1.10`, which is the number 1.1."""
    token = _typed.set(settings)
    try:
        yield
    finally:
        _typed.reset(token)


def check_keys(name: str, value: Any) -> None:
    """Reject dict keys that a config cannot hold, as a dot separates the names of entries."""
    if isinstance(value, list | tuple):
        for item in value:
            check_keys(name, item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str) and ("." in key or key.startswith("$")):
                hint = "nest it, as in {'a': {'b': ...}}" if key.strip(".") and not key.startswith("$") else "rename it"
                raise ConfigError(
                    f"{name}: got the key {key!r}, expected keys without `.`, and without `$` at first; {hint}"
                )
            check_keys(name, item)


def check_items(entry: str, value: Any, default: Any) -> None:
    """Reject list items that are set one by one, such as `layers.0.n=3`."""
    default = undogmatize(default)
    if isinstance(default, list) and isinstance(value, dict) and value and all(map(str.isdecimal, map(str, value))):
        raise ConfigError(
            f"{entry}.{next(iter(value))}: got an item of {entry}, expected the whole list; write for example "
            f"{entry}={shlex.quote(str(named(default)))}"
        )


def infer(default: Any) -> Any:
    """Infer the type of an entry without an annotation from its default; None gives `Any`."""
    if default is None:
        return Any
    if isinstance(default, list | tuple):
        is_flat = all(isinstance(item, bool | int | float | str) or object_name(item) is not None for item in default)
        kinds = {infer(item) for item in default} if is_flat else set()
        if kinds == {int, float}:
            return list[float]
        return types.GenericAlias(list, kinds.pop()) if len(kinds) == 1 else list
    for kind in (bool, int, float, str, dict, types.ModuleType, pathlib.PurePath):
        if isinstance(default, kind):
            return kind
    if object_name(default) is None:
        return Any
    return collections.abc.Callable if callable(default) else type(default)


def parts_of(kind: Any) -> tuple:
    """Return the members of a union of types; a tuple of the type itself for any other type."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def conform(value: Any, kind: Any, entry: str = "") -> Any:
    """Convert a value to a type; raise TypeError, or ConfigError for a dotted name that leads to nothing."""
    if kind is Any:
        return value
    kind = types.NoneType if kind is None else kind
    convert = _CONVERTERS.get(get_origin(kind) or kind)
    if convert is not None:
        return convert(value, kind, entry)
    # a dotted name of a torch object, such as a dtype
    if isinstance(kind, type) and kind.__module__ == "torch" and isinstance(value, str) and is_dotted_path(value):
        value = import_object(value, entry)
    if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    raise TypeError


def adopt(value: Any, default: Any, entry: str = "") -> Any:
    """Return a value for an entry whose default merely suggests its type, converted if it is of the default's type.

    A number may be any number, a list any list whose items fit, None stands for anything, and another kind is let
    through, as in Sacred. Obvious mistakes raise TypeError: a word for a number or a bool, `[a, b]` without quotes.
    """
    kind = infer(default)
    with contextlib.suppress(TypeError):
        return conform(value, kind, entry)
    if isinstance(value, list | tuple) and get_args(kind):
        return [adopt(item, default[0], entry) for item in value]
    is_word = isinstance(value, str) and (isinstance(default, int | float) or _is_unread(value, default))
    if value is not None and (is_word or not isinstance(default, int | float | str | list | tuple | dict)):
        raise TypeError
    return value


def _is_unread(value: str, default: Any) -> bool:
    """Return whether a text was meant to be the list or dict of the default, but lacks quotes around its items."""
    openings = ("[", "(") if isinstance(default, list | tuple) else ("{",) if isinstance(default, dict) else ()
    return value.lstrip().startswith(openings)


def is_number(kind: type) -> bool:
    """Return whether a type is numeric; bool is not."""
    return issubclass(kind, int | float) and kind is not bool


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


def _as_int(value: Any, kind: Any, entry: str) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
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
    if isinstance(value, str) and is_dotted_path(value):
        value = import_object(value, entry)
    if (get_origin(kind) or kind) is type:
        bounds = get_args(kind)
        bound = bounds[0] if bounds and isinstance(bounds[0], type) else object
        is_valid = isinstance(value, type) and issubclass(value, bound)
    else:
        is_valid = callable(value)
    if is_valid:
        return value
    raise TypeError


def _as_member(value: Any, kind: Any, entry: str) -> Any:
    """Return a value as the member of a union with its exact type, or else the first that accepts it."""
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
    int: _as_int,
    float: _as_float,
    type: _as_callable,
    collections.abc.Callable: _as_callable,
    types.ModuleType: _as_module,
    pathlib.PurePath: _as_path,
}


def describe(kind: Any) -> str:
    """Describe a type for a message: "a float", "a string or None", "one of off, float16"."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is list:
        return "a list of " + describe(args[0]).removeprefix("an ").removeprefix("a ") + "s"
    if len(parts_of(kind)) > 1:
        return " or ".join(map(describe, parts_of(kind)))
    if (origin or kind) in (type, collections.abc.Callable):
        what = "a class" if kind is type else "a class or function"
        if origin is type and isinstance(args[0], type):
            what = f"a subclass of {args[0].__name__}"
        return f"{what} by its dotted name"
    return str(_NAMES.get(origin or kind, getattr(kind, "__name__", kind)))


def misfit(entry: str, value: Any, kind: Any, default: Any) -> str:
    """Return the message for a value of the wrong type, with an example of a valid one."""
    default = undogmatize(default)
    if _is_local(value) and object_name(default) is not None:
        return (
            f"{entry}: got {value!r}, which cannot be imported: a lambda or local function is recorded by its source, "
            f"and taken from the config scope alone; leave {entry} out, or name a function: {entry}=package.module:name"
        )
    if isinstance(value, str) and float in parts_of(kind):
        if value.strip().lstrip("+-").lower() == "nan":
            reason = "NaN equals nothing, so no run could be found by it"
            return f"{entry}: got {value}, expected {describe(kind)}; {reason}"
        if value.strip("+-").lower() in ("inf", "infinity"):
            sign = "-" if value.startswith("-") else ""
            return _message(entry, value, kind, f"write infinity as {entry}={sign}1e999")
    if str in parts_of(kind) and isinstance(value, bool | int | float):
        text = _typed_text(entry, value)
        way = "put it in quotes" if text is None else f"write {entry}=" + shlex.quote(f'"{text}"')
        return _message(entry, value, kind, f"for the text {way}")
    return _message(entry, value, kind, _hint(entry, value, kind, default))


def misplaced(entry: str, value: Any, default: Any, *, may_annotate: bool) -> str:
    """Return the message for a value that `adopt` rejects, with the ways to fix it."""
    default, kind = undogmatize(default), infer(undogmatize(default))
    words = [each for each in (value if isinstance(value, list | tuple) else [value]) if isinstance(each, str)]
    example = default[0] if isinstance(default, list | tuple) and default else default
    if isinstance(value, str) and (quoted := _quoted(value, default)) is not None:
        return _message(entry, value, kind, f"did you mean {entry}={shlex.quote(quoted)}?")
    if not words or not isinstance(example, int | float) or words[0].strip("+-").lower() in ("nan", "inf", "infinity"):
        return misfit(entry, value, kind, default)
    expected = "True or False" if isinstance(example, bool) else "a number"
    guess = _meant(words[0], example) if words == [value] else None
    hint = f"did you mean {entry}={guess}? For text" if guess is not None else "for text"
    if may_annotate:
        kinds = "list" if isinstance(default, list | tuple) else f"{type(default).__name__} | str"
        declared = f"{kinds} | str" if kinds == "list" and words == [value] else kinds
        way = f"declare it in the scope, {entry.rpartition('.')[2]}: {declared} = {default!r}"
    else:
        way = "make its default None"
    word = shlex.quote(f"{entry}={_typed_text(entry, value) or value}")
    got = "nothing" if value == "" else f"{value!r} ({type(value).__name__})"
    expected = f"a list of {expected.removeprefix('a ')}s" if isinstance(default, list | tuple) else expected
    return f"{entry}: got {got}, expected {expected}; {hint} {way}, or run with --force, as in: --force with {word}"


def _quoted(text: str, default: Any) -> str | None:
    """Return a list or dict with the missing quotes around its items; None for another text."""
    from yaml import YAMLError

    with contextlib.suppress(TypeError, ValueError, YAMLError):
        parsed = load_yaml(text) if _is_unread(text, default) else None
        return json.dumps(adopt(parsed, default)) if isinstance(parsed, list | dict) else None
    return None


def _meant(word: str, default: Any) -> Any:
    """Return the number or bool that a word most likely means, such as 10000 for `10k`; None for another word."""
    if isinstance(default, bool):
        return {**dict.fromkeys(_YES, True), **dict.fromkeys(_NO, False)}.get(word.strip().lower())
    match = re.fullmatch(r"([-+]?\d+)(?:[.,](\d+))?([kKmM]?)\s*[a-zA-Z%]*", word.strip())
    if match is None:
        return None
    number = float(f"{match[1]}.{match[2] or 0}") * {"k": 1e3, "m": 1e6}.get(match[3].lower(), 1)
    return int(number) if number.is_integer() else number


def _message(entry: str, value: Any, kind: Any, hint: str) -> str:
    got = "nothing" if value == "" else f"{value!r} ({type(value).__name__})"
    text = _typed_text(entry, value) if isinstance(value, int | float) else None
    got = got if text in (None, repr(value)) else f"{text}, which is {got}"
    return f"{entry}: got {got}, expected {describe(kind)}; {hint}"


def _typed_text(entry: str, value: Any) -> str | None:
    """Return a value as typed for an entry or its alias; None if it comes from elsewhere."""
    last = entry.rpartition(".")[2]
    for name, text in _typed.get().items():
        if name.rpartition(".")[2] == last and repr(literal(text)) == repr(value):
            return text
    return None


def _hint(entry: str, value: Any, kind: Any, default: Any) -> str:
    """Return a working assignment: of the nearest choice, or the default."""
    name = entry
    if isinstance(default, dict) and default:
        key, default = next(iter(default.items()))
        name = f"{entry}.{key}"
    choices = [choice for part in parts_of(kind) for choice in get_args(part) if isinstance(choice, str)]
    example = "package.module:name" if _is_local(named(default)) else str(named(default))
    near = nearest(value, choices) if isinstance(value, str) else None
    hint = question([f"{name}={near}"] if near else [], f"write for example {name}={shlex.quote(example)}")
    if isinstance(value, bool) and {"on", "off", "yes", "no"} & {*choices}:
        hint += "; in YAML write 'off' in quotes"
    return hint


def _is_local(name: Any) -> bool:
    return isinstance(name, str) and (name.startswith("lambda ") or "<locals>" in name)
