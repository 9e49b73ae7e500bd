"""Types that the named configs of a script add to its entries: values that the author uses there are accepted.

    @ex.config
    def config():
        max_steps = 25000

    @ex.named_config
    def endless():
        max_steps = None  # so an int or None, where this named config is asked for

It holds for entries of the same experiment or ingredient that have no annotation. A config file has no such say. A
named config of a script, and a config file, may also add keys to the script's dicts
(`sacristan.experiments.running.strictness`).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from sacred.config.custom_containers import type_changed
from sacred.utils import join_paths

from sacristan.ingredients.config.entry_types import infer, is_number

__all__ = ["Gathered", "gathering", "kinds_of", "named_config_of", "note", "note_kind"]


@dataclasses.dataclass(frozen=True)
class _NamedValue:
    config: str
    owner: str
    value: Any


class Gathered(dict[str, list[_NamedValue]]):
    """The values that named configs set, by dotted name of the entry.

    Attributes:
        changed_kinds: Types of the default and the value of each entry whose kind a setting changed.
    """

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
    """Record the entries that a named config sets; `owner` is the path of its ingredient, "" for the experiment.

    `path` is where the entries are in the whole config; None means `owner`.
    """
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
