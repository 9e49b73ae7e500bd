"""`Map`: a read-only config with dotted access at every depth.

    >>> cfg = Map({"model": {"name": "mlp", "options": {"hidden": [64, 32]}}})
    >>> cfg.model.options.hidden
    [64, 32]
    >>> dict(**cfg.model.options)
    {'hidden': [64, 32]}

`Map` is a `dict`, so it goes wherever a dict goes (`json.dump`, `**cfg`, `isinstance`, MongoDB). The
methods of `dict` keep their meaning: `cfg.items` is always the method, also when a key is called
`items`; such a key is read as `cfg["items"]`. Lists inside a config are `FrozenList`, read-only too.

`copy.deepcopy(cfg)` and `to_plain(cfg)` are plain dicts and lists at every depth, to be changed or saved, and so is
what a pickle of it holds; processes that Python's `multiprocessing` starts get a `Map`.
`MutableMap` is the same as `Map`, to be changed: what config hooks are given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NoReturn

from sacristan.configs.nearest import word_suggestion


def freeze(value: Any) -> Any:
    """Return a read-only copy of a value, with each dict as a `Map` and each list as a `FrozenList`.

    Args:
        value: Dicts, lists and tuples, nested to any depth; all other objects are kept as they are.
    """
    if isinstance(value, Map | FrozenList):
        return value
    if isinstance(value, Mapping):
        return Map(value)
    if isinstance(value, list):
        return FrozenList(value)
    if type(value) is tuple:
        return tuple(freeze(item) for item in value)
    return value


def to_plain(value: Any) -> Any:
    """Return a plain copy of a value, with each mapping as a new `dict` and each list as a new `list`.

    Use it to change a config inside a run, or to save it with `torch.save`, YAML or JSON.

    Args:
        value: A `Map`, or nested mappings, lists and tuples; all other objects are kept as they are.
    """
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if type(value) is tuple:
        return tuple(to_plain(item) for item in value)
    return value


def is_group(value: Any) -> bool:
    """Tell whether a value is a group of named entries; a dict with other keys, such as `{0: 1.0}`, is one value."""
    return isinstance(value, Mapping) and bool(value) and all(isinstance(key, str) for key in value)


def _has_entries(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value)


def flattened(
    values: Mapping[Any, Any], prefix: str = "", separator: str = ".", opens: Callable[[Any], bool] = _has_entries
) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by their joined names; `opens` tells which values are flattened further."""
    for key, value in values.items():
        if opens(value):
            yield from flattened(value, f"{prefix}{key}{separator}", separator, opens)
        else:
            yield f"{prefix}{key}", value


def value_at(values: Any, name: str) -> Any:
    """Return the value at a dotted name, or None; keys that contain dots are not found."""
    for key in name.split("."):
        if not isinstance(values, Mapping):
            return None
        values = values.get(key)
    return values


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(
        f"a config is read-only inside a run, so this {type(self).__name__} cannot be changed; "
        "set the entry on the command line (`with key=value`), or work on a copy: copy.deepcopy(cfg) or to_plain(cfg)"
    )


class FrozenList(list):
    """A read-only list whose items are frozen too; equal to a plain list with the same items."""

    __slots__ = ()

    def __new__(cls, items: Any = ()) -> FrozenList:
        self = super().__new__(cls)
        list.extend(self, (freeze(item) for item in items))
        return self

    def __init__(self, items: Any = ()) -> None:
        """Do nothing: `__new__` has filled the list, and nothing may fill it again."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def copy(self) -> list:
        """Return a plain, writable list of the same (frozen) items."""
        return list(self)

    __copy__ = copy

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return list, (to_plain(self),)

    def __deepcopy__(self, memo: dict) -> list:
        return copy.deepcopy(to_plain(self), memo)


def abbreviated(names: Iterable[Any], most: int = 10, more: str = ", ...") -> str:
    """Return the first names joined by commas, and `more`, with their number for its `{}`, instead of the others."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (more.format(len(texts) - most) if len(texts) > most else "")


class _Dotted(dict):
    """A dict with dotted access."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            pass
        if name.startswith("__"):
            raise AttributeError(name)
        keys = [key for key in self if isinstance(key, str)]
        hint = word_suggestion(name, keys, f"it has: {', '.join(keys) or 'nothing'}", most=3)
        raise AttributeError(f"the config has no entry {name!r} here; {hint}", name=name, obj=self)

    def __dir__(self) -> list[str]:
        names = [key for key in self if isinstance(key, str) and key.isidentifier()]
        return sorted({*super().__dir__(), *names})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict.__repr__(self)})"

    def copy(self) -> dict:
        """Return a plain, writable dict of the same values, as `dict.copy` would."""
        return dict(self)

    __copy__ = copy

    def to_dict(self) -> dict:
        """Return a deep, writable copy made of plain dicts and lists."""
        return to_plain(self)

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return dict, (to_plain(self),)

    def __deepcopy__(self, memo: dict) -> dict:
        return copy.deepcopy(to_plain(self), memo)


class Map(_Dotted):
    """A read-only dict with dotted access; see the module's docstring for its rules.

    Args:
        mapping: The config; it is copied, dicts and lists at every depth, so that what happens to
            it later does not show here.
        **entries: Further entries.

    Raises:
        AttributeError: On reading a name that is no key, with the nearest keys.
        TypeError: On every way of writing.
    """

    __slots__ = ()

    def __new__(cls, mapping: Any = (), /, **entries: Any) -> Map:
        self = super().__new__(cls)
        plain = dict(mapping, **entries)
        dict.update(self, {key: freeze(value) for key, value in plain.items()})
        return self

    def __init__(self, mapping: Any = (), /, **entries: Any) -> None:
        """Do nothing: `__new__` has filled the map, and nothing may fill it again."""

    __setattr__ = __delattr__ = __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    @classmethod
    def fromkeys(cls, keys: Any, value: Any = None) -> Map:
        """Return a `Map` with the given keys, each with the same value."""
        return cls(dict.fromkeys(keys, value))


class MutableMap(_Dotted):
    """A dict with dotted access, to read and to write; dicts that are put into it become such ones.

    Args:
        mapping: The config; it is copied, dicts and lists at every depth.
        **entries: Further entries.

    Raises:
        AttributeError: On reading a name that is no key, with the nearest keys.
    """

    __slots__ = ()

    def __init__(self, mapping: Any = (), /, **entries: Any) -> None:
        super().__init__()
        self.update(mapping, **entries)

    def __deepcopy__(self, memo: dict) -> MutableMap:
        return MutableMap(copy.deepcopy(to_plain(self), memo))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, _thaw(value))

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        getattr(self, name)
        del self[name]

    def update(self, other: Any = (), /, **entries: Any) -> None:
        """Set entries from another mapping, or pairs, and keywords."""
        for key, value in dict(other, **entries).items():
            self[key] = value

    def __ior__(self, other: Any) -> MutableMap:  # type: ignore[misc]  # dict's takes the same
        self.update(other)
        return self

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key; if it is missing, set it to `default` first."""
        if key not in self:
            self[key] = default
        return self[key]


def _thaw(value: Any) -> Any:
    if isinstance(value, MutableMap):
        return value
    if isinstance(value, Mapping):
        return MutableMap(value)
    if isinstance(value, list):
        return [_thaw(item) for item in value]
    return tuple(_thaw(item) for item in value) if type(value) is tuple else value


def send_maps_as_maps(reduction: ModuleType) -> None:
    """Let workers, such as those of a loader, get a config with dotted access."""
    for kind in (Map, MutableMap, FrozenList):
        reduction.ForkingPickler.register(kind, _as_it_is)


def _as_it_is(config: Any) -> tuple:
    return type(config), (to_plain(config),)
