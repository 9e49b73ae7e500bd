"""Settings that are added to the config of a run that has begun, such as those that a script has parsed."""

from __future__ import annotations

import dataclasses
import enum
import re
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any

from sacred.utils import get_by_dotted_path, iterate_flattened

from sacristan.observers.record.object_names import object_name

_HIDDEN = "***"
# Narrower than the names of environment variables: `max_tokens` and `tokenizer` are settings.
_SECRET = re.compile(r"(^|_)(passw(or)?d|secret|credentials?|(api|access|private|auth)_?key|(?<!pad_)token)$", re.I)
_MOST_LEVELS = 32
_MOST_CHARACTERS = 1000
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MISSING = object()


def as_setting(value: Any, name: str = "", *, levels: int = _MOST_LEVELS) -> Any:
    """Return a value as a config holds it: numbers, texts, lists and dicts; other objects become text.

    This never raises. Namespaces, dataclasses and named tuples become dicts, members of an enum their value or else
    their name. A text under the `name` of a secret, such as `api_key`, is hidden.
    """
    if isinstance(value, enum.Enum):
        value = value.value if isinstance(value.value, str | int | float) else value.name
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _HIDDEN if value and _SECRET.search(name) else str(value)
    if isinstance(value, PurePath):
        return str(value)
    try:
        if levels:
            if (fields := _fields(value)) is not None:
                return {str(key): as_setting(item, str(key), levels=levels - 1) for key, item in fields.items()}
            if isinstance(value, list | tuple):
                return [as_setting(item, name, levels=levels - 1) for item in value]
            if isinstance(value, set | frozenset):
                return sorted((as_setting(item, name, levels=levels - 1) for item in value), key=repr)
        return object_name(value) or _as_text(value)
    except Exception:  # an object may raise anything when it is inspected
        return f"<{type(value).__name__}>"


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """Return the entries of a value that is like a dict; None for others."""
    if isinstance(value, Mapping):
        return value
    argparse = sys.modules.get("argparse")
    if isinstance(value, SimpleNamespace) or (argparse is not None and isinstance(value, argparse.Namespace)):
        return vars(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    declared = getattr(type(value), "model_fields", None) or getattr(type(value), "__attrs_attrs__", None)
    if isinstance(declared, Mapping | tuple):  # a model of pydantic, which has names, or a class of attrs
        return {name: getattr(value, name) for name in (str(getattr(each, "name", each)) for each in declared)}
    return value._asdict() if isinstance(value, tuple) and hasattr(value, "_asdict") else None


def _as_text(value: Any) -> Any:
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # an array, a tensor, or a scalar of one
        return as_setting(value.tolist(), levels=1) if getattr(value, "size", 0) == 1 else f"{value!r:.1000}"
    return _ADDRESS.sub("", str(value))[:_MOST_CHARACTERS]


def merge(config: MutableMapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Merge settings, nested or by dotted name, into a nested config; return the dotted names that changed."""
    changed = []
    for name, value in values.items():
        target, last = _place(config, str(name))
        value = as_setting(value, last)
        present = target.get(last, _MISSING)
        if isinstance(value, dict) and value and isinstance(present, dict):
            changed += [f"{name}.{inner}" for inner in merge(present, value)]
        elif present is _MISSING or type(present) is not type(value) or present != value:
            target[last] = value
            changed.append(str(name))
    return changed


def _place(config: MutableMapping[str, Any], name: str) -> tuple[MutableMapping[str, Any], str]:
    """Return the group that a dotted name is in, made where it is missing, and its name there."""
    *groups, last = name.split(".")
    if not groups or not last or not all(groups):
        return config, name
    target = config
    for group in groups:
        inner = target.get(group, _MISSING)
        if inner is _MISSING:
            inner = target[group] = {}
        if not isinstance(inner, dict):
            return config, name
        target = inner
    return target, last


def note_origins(
    meta_info: MutableMapping[str, Any], config: Mapping[str, Any], typed: Iterable[str], changed: Iterable[str]
) -> None:
    """Note which settings of the config were typed, and which the program has changed, as experiments do."""
    typed_before = {name for name, _ in iterate_flattened(meta_info.get("config_updates", {}))}
    origin_of = {entry: group["origin"] for group in meta_info.get("origins", ()) for entry in group["entries"]}
    for origin, names in (("the script", [name for name in changed if name in typed_before]), ("command line", typed)):
        for name in names:
            value = get_by_dotted_path(config, name, _MISSING)
            if value is not _MISSING:
                merge(meta_info.setdefault("config_updates", {}), {name: value})
                origin_of |= dict.fromkeys((entry for entry, _ in iterate_flattened({name: value})), origin)
    groups: dict[str, list[str]] = {}
    for entry, origin in origin_of.items():
        groups.setdefault(origin, []).append(entry)
    meta_info["origins"] = [{"origin": origin, "entries": entries} for origin, entries in groups.items()]
