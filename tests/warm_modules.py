"""The lab's modules in the warm process: imported there once, and given to a process when it imports them itself.

A process sees nothing of them before: a module stands in `sys.modules`, and in its package, after the process has
imported it, and what the module imports has been imported with it, in the same order. So a run records the same
sources as one that was started afresh. Modules are given only to a process whose path leads to the very files that
they were made of, unchanged. Others, such as those of a copy of the lab, import their own.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.machinery
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["LAB", "ImportedModules"]

LAB = "sacristan"
ROOMS = ("configs", "experiments", "ingredients", "observers", "runs")
# Programs; and what imports packages that few processes want.
LEFT_OUT = ("lightning", "lightning_logger", "board", "mcp", "templates", "events", "hub")


class _Module:
    """A module that was imported, with the imports that its text has made and the names that it had then.

    Attributes:
        shadowing: Of those names, the ones that a module in it has as well: importing that one puts it in their place.
    """

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__
        self.imports: list[tuple[str, dict[str, Any], tuple[str, ...], int]] = []
        self.names: dict[str, Any] = {}
        self.shadowing: dict[str, Any] = {}

    def hide(self, found: Iterable[str]) -> None:
        """Take the module to what it was at the end of its text, but without the modules that it holds as a package."""
        names, own = vars(self.module), f"{self.module.__name__}."
        for name in names.keys() - self.names.keys():
            del names[name]
        is_package = self.spec.submodule_search_locations is not None
        below = {name.removeprefix(own) for name in found if name.startswith(own)} if is_package else set()
        self.shadowing = {name: self.names[name] for name in below & self.names.keys()}
        for name, value in self.shadowing.items():
            if isinstance(value, ModuleType) and value.__name__ == own + name:
                del names[name]
        self.names.clear()  # a process would touch, and so copy, each of them


class ImportedModules:
    """A finder of modules, the first one in `sys.meta_path`, that has modules of a lab already.

    Args:
        root: The lab's folder.
    """

    def __init__(self, root: Path) -> None:
        self._found: dict[str, _Module] = {}
        with self._recorded():
            sys.path.insert(0, str(root))
            for name in _names(root):
                importlib.import_module(name)
            del sys.path[0]
        for name, found in self._found.items():
            del sys.modules[name]
            found.hide(self._found)
        # Texts of their own, one beside the other: a process that reads these touches few pages, and so copies few.
        self._files = [os.fsdecode(os.fsencode(found.spec.origin)) for found in self._found.values()]
        self._states = _states(self._files)
        sys.meta_path.insert(0, self)

    def __getitem__(self, name: str) -> ModuleType:
        return self._found[name].module

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        """Take note of each module of the lab that is imported, and of its own imports."""
        original_import, original_exec = builtins.__import__, SourceFileLoader.exec_module
        running: list[_Module] = []

        def note(name: str, names: Any = None, local: Any = None, wanted: Any = (), level: int = 0) -> ModuleType:
            if running and _is_of_lab((names or {}).get("__name__", "")) and (level or _is_of_lab(name)):
                place = {key: names[key] for key in ("__name__", "__package__", "__path__") if key in names}
                running[-1].imports.append((name, place, tuple(wanted or ()), level))
            return original_import(name, names, local, wanted, level)

        def execute(loader: SourceFileLoader, module: ModuleType) -> None:
            if not _is_of_lab(module.__name__):
                original_exec(loader, module)
                return
            running.append(_Module(module))
            original_exec(loader, module)
            found = self._found[module.__name__] = running.pop()
            found.names = dict(vars(module))

        builtins.__import__, SourceFileLoader.exec_module = note, execute  # type: ignore[method-assign]
        try:
            yield
        finally:
            builtins.__import__, SourceFileLoader.exec_module = original_import, original_exec  # type: ignore[method-assign]

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Return how a module is imported, if the process would find the file that it was made of."""
        if (found := self._found.get(name)) is None or not self._is_meant(found, path):
            return None
        folders = found.spec.submodule_search_locations
        spec = ModuleSpec(name, _Loader(found), origin=found.spec.origin, is_package=folders is not None)
        spec.submodule_search_locations, spec.has_location = folders, True
        return spec

    def _is_meant(self, found: _Module, path: Sequence[str] | None) -> bool:
        name = found.module.__name__
        package = name.rpartition(".")[0]
        if package:
            return package in self._found and sys.modules.get(package) is self._found[package].module
        if self._states and self._states != _states(self._files):
            self._found.clear()
            return False
        self._states = []  # they are asked for once in a process
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path) for finder in others)), None)
        return spec is not None and spec.origin == found.spec.origin


class _Loader(SourceFileLoader):
    """Gives a module that was imported already, after it has imported what its text does."""

    def __init__(self, found: _Module) -> None:
        super().__init__(found.module.__name__, found.spec.origin)
        self._found = found

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._found.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._found.spec
        for name, place, wanted, level in self._found.imports:
            builtins.__import__(name, place, None, wanted, level)
        vars(module).update(self._found.shadowing)


def _is_of_lab(name: str) -> bool:
    return name.partition(".")[0] == LAB


def _names(root: Path) -> list[str]:
    """Return the modules of a lab's packages: none that are programs or experiments of their own."""
    found = [LAB]
    for package in ROOMS:
        found.append(f"{LAB}.{package}")
        for module in pkgutil.iter_modules([str(root / package)], f"{LAB}.{package}."):
            if module.ispkg:
                found += _below(root, module.name)
            elif package != "experiments" or module.name == "sacristan.experiments.experiment":
                found.append(module.name)
    return [name for name in found if name.rpartition(".")[2] not in ("__main__", *LEFT_OUT)]


def _below(root: Path, package: str) -> list[str]:
    if package.rpartition(".")[2] in LEFT_OUT:
        return []
    found = [package]
    for module in pkgutil.iter_modules([str(root.joinpath(*package.split(".")[1:]))], f"{package}."):
        found += _below(root, module.name) if module.ispkg else [module.name]
    return found


def _states(files: Iterable[str]) -> list[tuple[int, int, int]]:
    """Return what tells whether files are those they were."""
    states = []
    for file in files:
        try:
            state = os.stat(file)  # noqa: PTH116 - a third of the time, for hundreds
        except FileNotFoundError:
            states.append((0, 0, 0))
        else:
            states.append((state.st_ino, state.st_size, state.st_mtime_ns))
    return states
