"""Names in a config: objects by dotted path, and options checked against a signature."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from sacristan.configs import to_plain
from sacristan.configs.nearest import suggestion
from sacristan.configs.packages import missing_package
from sacristan.ingredients.errors import ConfigError, LabError, MissingDependencyError
from sacristan.observers.record.object_names import imported_main
from sacristan.old_names import renamed


def is_dotted_path(name: str) -> bool:
    """Return whether a name is the path of an object: `package.module:object` or `package.module.object`."""
    return ("." in name or ":" in name) and all(part.isidentifier() for part in name.replace(":", ".").split("."))


def import_object(path: str, entry: str) -> Any:
    """Import an object by its dotted path; modules that are not installed are looked up in the working folder."""
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    target: Any = import_module(module_name, entry, path)
    for part in attribute.split("."):
        if not hasattr(target, part):
            names = [name for name in vars(target) if not name.startswith("_")]
            hint = suggestion(part, names, "check the spelling", form=repr)
            raise ConfigError(f"{entry}: got {path!r}, but {module_name} has no {part!r}; {hint}")
        target = getattr(target, part)
    return target


def import_module(name: str, entry: str, path: str | None = None) -> ModuleType:
    """Import a module; one that is not installed is looked up in the working folder."""
    _let_find(name.partition(".")[0])
    try:
        # The main module is imported already, under another name.
        return importlib.import_module("__main__" if name == imported_main() else name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise
        new = renamed(name)  # configs of earlier releases have the old name
        with contextlib.suppress(ModuleNotFoundError):
            if new != name and importlib.util.find_spec(new) is not None:
                return importlib.import_module(new)
        raise ConfigError(
            f"{entry}: got {path or name!r}, but there is no module {error.name!r}; "
            "give package.module:object for a module in this folder or an installed one"
        ) from error


def _let_find(name: str) -> None:
    """Add the working folder to the import path, for good, if only it has the module: worker processes need it."""
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        return
    folder = str(Path.cwd())
    if importlib.machinery.PathFinder.find_spec(name, [folder]) is not None:
        sys.path.append(folder)


def check_options(target: Callable, options: Mapping[str, Any], entry: str, arguments: Mapping[str, Any] = {}) -> None:
    """Check a free-form dict of options against the signature that receives them, besides `arguments`."""
    parameters = inspect.signature(target).parameters
    named = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    label = getattr(target, "__qualname__", str(target))
    for name in options:
        if name in arguments:
            raise ConfigError(f"{entry}.{name}: {label} gets {name!r} from the lab already; remove it from {entry}")
        if not (takes_any or name in named):
            free = [other for other in named if other not in arguments]
            hint = suggestion(name, free, f"it takes: {', '.join(free) or 'no options'}", form=repr)
            raise ConfigError(f"{entry}.{name}: {label} takes no option {name!r}; {hint}")
    for name in named:
        if parameters[name].default is inspect.Parameter.empty and name not in {*options, *arguments}:
            raise ConfigError(f"{entry}: {label} needs a value for {name!r}; write {entry}.{name}=...")


def build(
    target: Callable, options: Mapping[str, Any], entry: str, error: type[LabError] = ConfigError, /, **given: Any
) -> Any:
    """Return `target(**given, **options)`; raise ConfigError for a wrong option, `error` for rejected values."""
    check_options(target, options, entry, given)
    try:
        return target(**given, **to_plain(options))
    except LabError:
        raise
    except (TypeError, ValueError, RuntimeError, AssertionError) as reason:
        label = getattr(target, "__qualname__", str(target))
        shown = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "its defaults"
        raise error(f"{entry}: {label} refuses {shown}: {reason}") from reason


def require(module: str, extra: str, purpose: str) -> Any:
    """Import an optional package where it is needed; the error names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = missing_package(f"{purpose} needs", module.partition(".")[0], extra)
        raise MissingDependencyError(message) from error
