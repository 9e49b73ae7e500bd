"""Imported modules and their files; a run asks several times, for thousands of modules."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

__all__ = ["is_loose", "module_files"]

# The modules of the last call, each with its file; those in loose folders; and the files by folder and module.
_known: dict[str, tuple[ModuleType | None, str]] = {}
_loose: dict[str, ModuleType | None] = {}
_files: dict[str, dict[str, str]] = {}
_looking = threading.Lock()
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(before=_looking.acquire, after_in_parent=_looking.release, after_in_child=_looking.release)


def module_files() -> Mapping[str, Mapping[str, str]]:
    """Return the files of all imported modules: by folder, then by the module's name.

    A module that replaces another one in `sys.modules` during a run is noticed if the old one was loose; see
    `is_loose`.
    """
    global _files
    with _looking:
        gone, new = _changes()
        if gone or new:
            files, own = dict(_files), set()

            def of_folder(file: str) -> dict[str, str]:
                folder = _folder(file)
                if folder not in own:  # other threads may be reading the old result
                    own.add(folder)
                    files[folder] = dict(files.get(folder, {}))
                return files[folder]

            for name in gone:
                _, file = _known.pop(name)
                _loose.pop(name, None)
                if file:
                    del of_folder(file)[name]
            for name, module in new.items():
                named = getattr(module, "__file__", None)
                file = named if isinstance(named, str) else ""
                _known[name] = module, file
                if file:
                    of_folder(file)[name] = file
                if is_loose(_folder(file)):
                    _loose[name] = module
            _files = files
        return _files


def _changes() -> tuple[set[str], dict[str, ModuleType | None]]:
    """Return the names of known modules that are gone or were replaced, and the modules that are new."""
    # New modules come last: unless one has gone, only these and the loose ones have to be checked.
    new: dict[str, ModuleType | None] = {}
    with contextlib.suppress(RuntimeError):  # another thread is importing one
        for name, module in reversed(sys.modules.items()):
            if name in _known:
                break
            new[name] = module
        if len(_known) + len(new) == len(sys.modules):
            pairs = ((name, module, sys.modules.get(name)) for name, module in _loose.items())
            others = {name: found for name, module, found in pairs if found is not module}
            return set(others), {**others, **dict(reversed(new.items()))}
    modules = dict(sys.modules)
    gone = {name for name, (module, _) in _known.items() if modules.get(name) is not module}
    return gone, {name: module for name, module in modules.items() if name not in _known or name in gone}


def _folder(file: str) -> str:
    return file.rpartition(os.sep)[0]


@functools.cache
def is_loose(folder: str) -> bool:
    """Tell whether a folder contains neither installed packages nor Python's own modules."""
    if not folder or not {"site-packages", "dist-packages"}.isdisjoint(folder.split(os.sep)):  # noqa: PTH206
        return False
    real = Path(folder).resolve()
    return not any(real.is_relative_to(own) for own in _own_folders())


@functools.cache
def _own_folders() -> tuple[Path, ...]:
    """Return where Python keeps its own modules."""
    return tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
