"""Configs that a command line names: named configs of a script, and config files.

A named config adds types to entries: values that the author uses there are accepted.

    @ex.config
    def config():
        max_steps = 25000

    @ex.named_config
    def endless():
        max_steps = None  # so an int or None, where this named config is asked for

It holds for entries of the same experiment or ingredient that have no annotation. A config file has no such say. A
named config of a script, and a config file, may also add keys to the script's dicts
(`sacristan.experiments.running.strictness`).

Config files are read as data: JSON and YAML, never pickle, never tags that build objects. Sacred's own handlers of
`with file.yaml` decode jsonpickle, full YAML and pickle, which can run code; `guard_sacred` replaces them. In a
recorded config, sets, dates, arrays and other values that JSON lacks are restored; any other object becomes an
`Opaque`, which stands for the default.
"""

from __future__ import annotations

import ast
import contextlib
import contextvars
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sacred import SETTINGS
from sacred.config.custom_containers import type_changed
from sacred.utils import join_paths

from sacristan.configs.files import dump_yaml, find_file, load_json, load_yaml
from sacristan.ingredients.config.entry_types import infer, is_number, literal
from sacristan.ingredients.errors import ConfigError, MissingConfigFileError
from sacristan.observers.file.recorded_values import is_recorded_object, opaque_in, read_back
from sacristan.observers.file.sacred_form import plain
from sacristan.observers.record.files import replacing


@dataclasses.dataclass(frozen=True)
class _NamedValue:
    config: str
    owner: str
    value: Any


class Gathered(dict[str, list[_NamedValue]]):
    """Values that named configs set, by dotted name; `changed_kinds` has the types where a setting changed them."""

    def __init__(self) -> None:
        super().__init__()
        self.changed_kinds: dict[str, tuple[type, type]] = {}


_values: contextvars.ContextVar[Gathered | None] = contextvars.ContextVar("values", default=None)


@contextlib.contextmanager
def gathering() -> Iterator[Gathered]:
    """Record the values that named configs set, and changed types, while a config is computed in the block."""
    gathered = Gathered()
    token = _values.set(gathered)
    try:
        yield gathered
    finally:
        _values.reset(token)


def note_kind(entry: str, default: Any, value: Any) -> None:
    """Record an entry whose type a setting other than a named config changed."""
    gathered = _values.get()
    kinds = type(default), type(value)
    is_same = type_changed(default, value) is False or all(map(is_number, kinds))
    if gathered is not None and not is_same and named_config_of(entry, value) is None:
        gathered.changed_kinds[entry] = kinds


def note(config: str, owner: str, entries: Mapping[str, Any], path: str | None = None) -> None:
    """Record what a named config sets in the ingredient `owner`, whose entries are at `path` in the whole config."""
    gathered = _values.get()
    if gathered is None:
        return
    for key, value in entries.items():
        name = join_paths(owner if path is None else path, str(key))
        gathered.setdefault(name, []).append(_NamedValue(config, owner, value))
        if isinstance(value, Mapping):
            note(config, owner, value, name)


def kinds_of(entry: str, owner: str) -> list[Any]:
    """Return the types of the values that named configs of `owner` ("" for the experiment) set an entry to."""
    values = [each.value for each in (_values.get() or Gathered()).get(entry, ()) if each.owner == owner]
    return [type(None) if value is None else infer(value) for value in values]


def named_config_of(entry: str, value: Any) -> str | None:
    """Return the name of the named config that set an entry to a value; None if none did."""
    for each in reversed((_values.get() or Gathered()).get(entry, ())):
        if type(each.value) is type(value) and each.value == value:
            return each.config
    return None


_keeps_opaque = contextvars.ContextVar("keeps_opaque", default=False)

_READERS: dict[str, Callable[[str], Any]] = {".json": load_json, ".yaml": load_yaml, ".yml": load_yaml}


def read_config_file(path: str | Path) -> dict:
    """Return the entries of a JSON or YAML file, by suffix; `configs/NAME` may name a recipe of the lab."""
    path = find_file(path)
    if path.suffix not in _READERS:
        raise ConfigError(f"{path}: got a {path.suffix or 'suffixless'} file, expected .yaml, .yml or .json")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingConfigFileError(f"{path}: there is no such config file; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text: {error}") from error
    return _parse(text, path)


def _parse(text: str, path: Path) -> dict:
    try:
        entries = _READERS[path.suffix](text)
    except Exception as error:
        kind, reason = "JSON" if path.suffix == ".json" else "YAML", " ".join(str(error).split())
        raise ConfigError(f"{path}: is not valid {kind}: {reason}") from error
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        kind = type(entries).__name__
        raise ConfigError(f"{path}: got a {kind}, expected entries of the form `key: value`")
    for key in entries:
        _check_name(key, path)
    _check_entries(entries, path)
    return read_back(_without_docstrings(entries))


def _without_docstrings(entries: dict) -> dict:
    """Return the entries of a file without the docstrings of scopes, which Sacred records as entries."""
    kept = {key: value for key, value in entries.items() if key != "__doc__" or not isinstance(value, str)}
    return {key: _without_docstrings(value) if isinstance(value, dict) else value for key, value in kept.items()}


def _check_entries(value: Any, path: Path) -> None:
    """Reject keys and values that a config cannot hold, such as YAML's dates."""
    if isinstance(value, list):
        for item in value:
            _check_entries(item, path)
    elif isinstance(value, dict) and is_recorded_object(value):
        return
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_key(key, path)
            _check_entries(item, path)
    elif not isinstance(value, str | int | float | None):
        raise ConfigError(f"{path}: got {value} ({type(value).__name__}), expected a number or text; quote it for text")


def _check_name(key: Any, path: Path) -> None:
    if not isinstance(key, str):
        raise ConfigError(f"{path}: got the key {key!r} ({type(key).__name__}), expected text; quote it")
    if key.startswith(("json://", "py/")):
        raise ConfigError(f"{path}: got the key {key!r}, expected the name of a setting")


def _check_key(key: Any, path: Path) -> None:
    if type(key) in (int, float):
        return
    if not isinstance(key, str):
        raise ConfigError(f"{path}: got the key {key!r} ({type(key).__name__}), expected text; quote it")
    if key.startswith("json://"):
        return
    if "." in key.strip("."):
        names = key.strip(".").split(".")
        number = next((index for index, name in enumerate(names) if index and name.isdecimal()), None)
        if number is None:
            raise ConfigError(f"{path}: got the key {key!r}; nest it, as in `{_nested(names, '...')[1:-1]}`")
        item = _nested(names[number + 1 :], "...")
        raise ConfigError(
            f"{path}: got the key {key!r}, an item of the list {'.'.join(names[:number])}; give the whole list, as in "
            f"`{_nested(names[:number], f'[{item}, ...]')[1:-1]}`"
        )
    if not key or "." in key or key.startswith("$"):
        raise ConfigError(f"{path}: got the key {key!r}, expected a name without `.` and `$`")


def _nested(names: list[str], value: str) -> str:
    """Return the YAML of a value below some names: `{a: {b: value}}`."""
    for name in reversed(names):
        value = f"{{{name}: {value}}}"
    return value


def write_config_file(config: dict, path: str | Path) -> None:
    """Write a config as JSON or YAML, by the suffix; the file is replaced as a whole or not at all."""
    path = Path(path)
    if path.suffix not in _READERS:
        raise ConfigError(f"config_filename: got {str(path)!r}, expected a name ending in .yaml, .yml or .json")
    try:
        recorded = _recorded(config)
        if opaque := opaque_in(read_back(recorded)):
            raise TypeError(f"got {opaque!r}")
        text = json.dumps(recorded, indent=2) + "\n" if path.suffix == ".json" else dump_yaml(recorded)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: a config holds numbers, text, lists and dicts only: {reason}") from error
    try:
        with replacing(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}; choose another config_filename") from error


def _recorded(value: Any) -> Any:
    """Return the recorded form of a value, but keep passwords in URLs."""
    if isinstance(value, dict):
        return dict(zip(plain(dict.fromkeys(value)), map(_recorded, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return list(map(_recorded, value))
    return value if isinstance(value, str) else plain(value)


@contextlib.contextmanager
def keeping_opaque() -> Iterator[None]:
    """Keep recorded objects from `with FILE` in the block, for scopes to compare with their defaults."""
    token = _keeps_opaque.set(True)
    try:
        yield
    finally:
        _keeps_opaque.reset(token)


def guard_sacred() -> None:
    """Make `with FILE` and `NAME=VALUE` read values through this module; further calls change nothing."""
    from sacred import arg_parser
    from sacred.config import config_files

    def load(stream: Any) -> dict:
        entries = _parse(stream.read(), Path(stream.name))
        if not _keeps_opaque.get() and (opaque := opaque_in(entries)):
            raise ConfigError(f"{stream.name}: holds {opaque!r}, which reading does not make, as that runs its code")
        return entries

    for suffix in _READERS:
        config_files.HANDLER_BY_EXT[suffix] = config_files.Handler(load, config_files.HANDLER_BY_EXT[suffix].dump, "")
    config_files.HANDLER_BY_EXT.pop(".pickle", None)
    # Sacred sends a literal through JSON, which makes texts of all keys, and decodes what that describes.
    arg_parser._convert_value = _value_of


def _value_of(text: str) -> Any:
    """Return the value of a command-line text: a literal with lists for tuples or, if not strict, the text."""
    return _with_lists(ast.literal_eval(text) if SETTINGS.COMMAND_LINE.STRICT_PARSING else literal(text))


def _with_lists(literal: Any) -> Any:
    """Return a literal with lists instead of tuples, as in every config."""
    if isinstance(literal, dict):
        return {key: _with_lists(item) for key, item in literal.items()}
    return list(map(_with_lists, literal)) if isinstance(literal, list | tuple) else literal
