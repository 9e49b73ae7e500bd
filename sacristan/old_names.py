"""The names by which the lab's packages were imported before: in a checkout, `runs` is `sacristan.runs`.

Modules below an old name are those below the new one, so that no module is loaded twice.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importing the module takes 3 ms

__all__ = ["current_name", "forward", "renamed"]

_PACKAGES = ("configs", "experiments", "ingredients", "observers", "runs")


def forward(package: str) -> None:
    """Make an old name, under which a package is being imported, an alias of the package."""
    message = f"import {package} is now import sacristan.{package}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)  # in the module that imports it
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    sys.modules[package] = importlib.import_module(f"sacristan.{package}")


def current_name(module: str) -> str:
    """Return the name by which a module is imported now; other names stay as they are."""
    package = module.partition(".")[0]
    is_old = package in sys.modules and sys.modules[package] is sys.modules.get(f"sacristan.{package}")
    return f"sacristan.{module}" if is_old else module


def renamed(module: str) -> str:
    """Return the current name of a module of the lab from an old, recorded one; other names stay."""
    return f"sacristan.{module}" if module.partition(".")[0] in _PACKAGES else module


class _Finder:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = current_name(fullname)
        spec = find_spec(new) if path is not None and new != fullname else None
        if spec is None:
            return None
        loader = _Loader(spec)
        is_package = spec.submodule_search_locations is not None
        return spec_from_loader(fullname, loader, origin=spec.origin, is_package=is_package)


class _Loader(Loader):
    """Loads the module of another spec, unless it is loaded."""

    def __init__(self, spec: ModuleSpec) -> None:
        self.spec = spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module, which another one replaces."""

    def exec_module(self, module: ModuleType) -> None:
        # What is there afterwards is what the import returns.
        sys.modules[module.__name__] = importlib.import_module(self.spec.name)

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code for `python -m`."""
        loader: Any = self.spec.loader
        return loader.get_code(self.spec.name) if hasattr(loader, "get_code") else None

    def get_source(self, fullname: str) -> str | None:
        loader: Any = self.spec.loader
        return loader.get_source(self.spec.name) if hasattr(loader, "get_source") else None
