"""A library that does its own work, of which every call is given to its stand-in as well."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from sacristan.experiments.scripts.capturing import watched

# Classes that scripts make media of, with the methods that add to them.
_MADE: Mapping[str, tuple[str, ...]] = {
    "Image": (), "Table": ("add_data", "add_column"), "Histogram": (), "Audio": (), "Video": (), "Html": (),
    "Markdown": (),
}  # fmt: skip
# The attribute of such an object that holds what the stand-in has made of the same arguments.
_TWIN = "_sacristan_twin"


def mirror(module: Any, run_class: type, stand_in: Any, calls: Mapping[str, str]) -> None:
    """Give calls of a library to its stand-in.

    Args:
        module: The library.
        run_class: The class of its runs.
        stand_in: The module that stands in for it, which no script imports.
        calls: Methods of a run, by the name of the stand-in's function.
    """
    for name, methods in _MADE.items():
        if hasattr(module, name) and hasattr(stand_in, name):
            _mirror_class(getattr(module, name), getattr(stand_in, name), methods)

    def give_to(function: Callable[..., Any]) -> Callable[..., None]:
        return lambda _, *args, **options: function(*map(twin_of, args), **twin_of(options))

    module.init = watched(module.init, give_to(stand_in.init))
    for name, method in calls.items():
        note = give_to(getattr(stand_in, name))
        of_run = lambda result, run, *args, note=note, **options: note(result, *args, **options)  # noqa: E731
        setattr(run_class, method, watched(getattr(run_class, method), of_run))


def _mirror_class(kind: type, stand_in: type, methods: tuple[str, ...]) -> None:
    library = kind.__module__.partition(".")[0]

    def make(_: Any, made: Any, *args: Any, **options: Any) -> None:
        if _is_called_outside(library):
            vars(made)[_TWIN] = stand_in(*map(twin_of, args), **twin_of(options))

    kind.__init__ = watched(kind.__init__, make)  # type: ignore[misc]  # it is the point
    for name in methods:

        def add(_: Any, made: Any, *args: Any, name: str = name, **options: Any) -> None:
            if _TWIN in vars(made) and _is_called_outside(library):
                getattr(vars(made)[_TWIN], name)(*map(twin_of, args), **twin_of(options))

        if hasattr(kind, name):
            setattr(kind, name, watched(getattr(kind, name), add))


def _is_called_outside(library: str) -> bool:
    """Return whether a watched method was called by other code than that of its library."""
    caller = sys._getframe(3).f_globals.get("__name__")
    return str(caller).partition(".")[0] != library


def twin_of(value: Any) -> Any:
    """Return what the stand-in takes instead of a value of the library, also within mappings and lists."""
    found = getattr(value, "__dict__", {}).get(_TWIN)
    if found is not None:
        return found
    if type(value) is dict:
        return {name: twin_of(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(twin_of, value))
    return value
