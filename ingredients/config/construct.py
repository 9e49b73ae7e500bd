"""Names in a config: objects by dotted path, options checked against a signature, and the nearest known name."""

from __future__ import annotations

import difflib
import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from configs import to_plain
from ingredients.errors import ConfigError, LabError, MissingDependencyError
from observers.record.object_names import imported_main

__all__ = [
    "build",
    "check_options",
    "import_module",
    "import_object",
    "is_dotted_path",
    "listed",
    "nearest",
    "require",
    "suggested",
]


def is_dotted_path(name: str) -> bool:
    """Return whether a name is the path of an object in a module: `package.module:object` or `package.module.object`.

    Args:
        name: The name.
    """
    return ("." in name or ":" in name) and all(part.isidentifier() for part in name.replace(":", ".").split("."))


def import_object(path: str, entry: str) -> Any:
    """Import an object by its dotted path; modules that Python does not find are looked up in the working folder.

    Args:
        path: `package.module:object` or `package.module.object`, as typed.
        entry: Dotted name of the config entry that holds it, for messages.

    Raises:
        ConfigError: If the module or the object in it does not exist.
    """
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    found: Any = import_module(module_name, entry, path)
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in vars(found) if not name.startswith("_")]
            hint = suggested(part, names, "check the spelling", quoted=True)
            raise ConfigError(f"{entry}: got {path!r}, but {module_name} has no {part!r}; {hint}")
        found = getattr(found, part)
    return found


def import_module(name: str, entry: str, path: str | None = None) -> ModuleType:
    """Import a module; one that Python does not find is looked up in the working folder.

    Args:
        name: Its dotted name.
        entry: Dotted name of the config entry that names it, for messages.
        path: The text as typed, where it is more than the module's name.

    Raises:
        ConfigError: If there is no such module.
    """
    _let_find(name.partition(".")[0])
    try:
        # The main module is imported already, under another name.
        return importlib.import_module("__main__" if name == imported_main() else name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise
        raise ConfigError(
            f"{entry}: got {path or name!r}, but there is no module {error.name!r}; "
            "give package.module:object for a module in this folder or an installed one"
        ) from error


def _let_find(name: str) -> None:
    """Add the working folder to the path of modules if it alone has a module; for good, as worker processes need it.

    Python itself looks into the folder of the script, which may be another one.
    """
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        return
    folder = str(Path.cwd())
    if importlib.machinery.PathFinder.find_spec(name, [folder]) is not None:
        sys.path.append(folder)


def check_options(target: Callable, options: Mapping[str, Any], entry: str, given: Mapping[str, Any] = {}) -> None:
    """Check a free-form dict of options against the signature that it goes to.

    Args:
        target: The class or function.
        options: The options, as typed.
        entry: Dotted name of the config entry that holds them, for messages.
        given: Arguments that the caller passes besides.

    Raises:
        ConfigError: If an option is unknown or passed by the caller, or a required one is missing.
    """
    parameters = inspect.signature(target).parameters
    named = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    label = getattr(target, "__qualname__", str(target))
    for name in options:
        if name in given:
            raise ConfigError(f"{entry}.{name}: {label} gets {name!r} from the lab already; remove it from {entry}")
        if not (takes_any or name in named):
            free = [other for other in named if other not in given]
            hint = suggested(name, free, f"it takes: {', '.join(free) or 'no options'}", quoted=True)
            raise ConfigError(f"{entry}.{name}: {label} takes no option {name!r}; {hint}")
    for name in named:
        if parameters[name].default is inspect.Parameter.empty and name not in {*options, *given}:
            raise ConfigError(f"{entry}: {label} needs a value for {name!r}; write {entry}.{name}=...")


def build(
    target: Callable, options: Mapping[str, Any], entry: str, error: type[LabError] = ConfigError, /, **given: Any
) -> Any:
    """Return `target(**given, **options)`, once the options are checked.

    Args:
        target: The class or function.
        options: The options, as typed.
        entry: Dotted name of the config entry that holds them, for messages.
        error: Type of the error if `target` rejects the values.
        **given: Arguments that the lab passes besides.

    Raises:
        ConfigError: If an option is unknown or a required one is missing.
        LabError: Of type `error`, if `target` rejects the values; its own message is kept.
    """
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
    """Import an optional package where it is needed.

    Args:
        module: Dotted name of the module.
        extra: The extra of this package that installs it.
        purpose: What needs it, for the message, such as "plots".

    Returns:
        The module.

    Raises:
        MissingDependencyError: If it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{purpose} needs the package {module.partition('.')[0]!r}, which is not installed; "
            f"install it with: pip install 'sacristan[{extra}]'"
        ) from error


def nearest(name: str, known: list[str]) -> str | None:
    """Return the known name that a mistyped one most likely stands for.

    Args:
        name: The name as typed, dotted or plain.
        known: Names that exist. One that alone has the same last part is taken, whatever its group.

    Returns:
        The name; None if none is like it.
    """
    same_leaf = [other for other in known if other.rpartition(".")[2] == name.rpartition(".")[2]]
    if len(same_leaf) == 1:
        return same_leaf[0]
    likeness, other = max(((_likeness(name, other), other) for other in known), default=(0.0, None))
    return other if likeness >= 0.7 else None


def _likeness(name: str, other: str) -> float:
    parts, other_parts = name.split("."), other.split(".")
    if len(parts) == len(other_parts):
        # Every part must be alike: a group in common says little about what was meant in it.
        each = [_part_likeness(a, b) for a, b in zip(parts, other_parts, strict=True)]
        return sum(each) / len(each) if min(each) >= 0.5 else 0.0
    whole = _ratio(name, other) if len(parts) == 1 else 0.0
    return max(whole, 0.95 * _part_likeness(parts[-1], other_parts[-1]))


def _part_likeness(a: str, b: str) -> float:
    return max(_ratio(a, b), 0.8 if len(a) > 2 and (b.startswith(a) or b.endswith(a)) else 0.0)


def _ratio(a: str, b: str) -> float:
    a, b = a.lower(), b.lower()
    # Swapped letters are the commonest slip, and would count as two differences.
    return 0.95 if a != b and sorted(a) == sorted(b) else difflib.SequenceMatcher(None, a, b).ratio()


def suggested(name: str, known: Iterable[str], otherwise: str | None = None, *, quoted: bool = False) -> str:
    """Return the advice of a message about an unknown name.

    Args:
        name: The name as typed.
        known: Names that exist.
        otherwise: The advice if none of them is like it; None lists them.
        quoted: Whether to show the nearest name in quotes.
    """
    known = list(known)
    near = nearest(name, known)
    if near is None:
        return otherwise or f"there are: {', '.join(known)}"
    return f"did you mean {near!r}?" if quoted else f"did you mean {near}?"


def listed(names: Iterable[Any], most: int = 10) -> str:
    """Return names for a message, the first `most` of them."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")
