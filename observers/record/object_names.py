"""Objects in a config as they are recorded: a class, a function or a module by its dotted name."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from sacristan.old_names import current_name


def named(value: Any) -> Any:
    """Replace classes, functions and modules in mappings and lists by names, and paths by their text."""
    if isinstance(value, Mapping):
        return {key: named(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(named, value))
    if type(value) is tuple:
        return tuple(map(named, value))
    if isinstance(value, PurePath):
        return str(value)
    return object_name(value) or value


def object_name(value: Any) -> str | None:
    """Return the name of a class, function, module or constant of torch; None for any other value.

    The name is `module:qualified.name` if importing it finds the object. A lambda is named by its source. An object
    local to a function has `<locals>` in its name, and the first digits of the SHA-256 of its source.

    >>> import fractions
    >>> object_name(fractions), object_name(fractions.Fraction), object_name(fractions.Fraction.as_integer_ratio)
    ('fractions', 'fractions:Fraction', 'fractions:Fraction.as_integer_ratio')
    >>> object_name(lambda x: 2 * x)
    'lambda x: 2 * x'
    """
    if isinstance(value, ModuleType):
        return value.__name__
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value).replace(".", ":", 1)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not (callable(value) and isinstance(name, str)):
        return None
    module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", None)
    for candidate in dict.fromkeys((name, getattr(value, "__name__", name))):
        if _find(module, candidate) is value:
            return f"{_shown_module(module)}:{candidate}"
    return _local_name(value, _shown_module(module), name)


def imported_main() -> str | None:
    """Return the name by which another script would import the main module; None if it has no file."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return current_name(spec.name)
    file = getattr(main, "__file__", None)
    return None if file is None or file.startswith("<") else Path(file).stem


def _find(module: str | None, name: str) -> Any:
    value: Any = sys.modules.get(module or "")
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _shown_module(module: str | None) -> str:
    return (imported_main() if module == "__main__" else module) or "__main__"


def _local_name(value: Any, module: str, name: str) -> str:
    source = _source(value)
    if source is not None and name.endswith("<lambda>"):
        return source
    if isinstance(value, BuiltinFunctionType):
        return f"{module}:{name}"
    local = name if "<locals>" in name else f"<locals>.{name}"
    digest = "" if source is None else f" {hashlib.sha256(source.encode()).hexdigest()[:8]}"
    return f"{module}:{local}{digest}"


def _source(value: Any) -> str | None:
    """Return the normalised source of a function or class, without comments and line breaks; None without a source."""
    try:
        text = textwrap.dedent(inspect.getsource(value))
        is_lambda = isinstance(value, FunctionType) and value.__name__ == "<lambda>"
        return _source_of_lambda(value, text) if is_lambda else ast.unparse(ast.parse(text))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


def _essence(code: CodeType) -> tuple:
    """Return what a lambda does, without the variables of enclosing functions."""
    plain = tuple(constant for constant in code.co_consts if not inspect.iscode(constant))
    return plain, {*code.co_names, *code.co_freevars}, code.co_varnames


def _source_of_lambda(value: FunctionType, text: str) -> str | None:
    """Return the source of a lambda in the lines `text`; None if it is ambiguous."""
    lambdas = [(node, _code(node)) for node in ast.walk(_parsed(text)) if isinstance(node, ast.Lambda)]
    alike = [(node, code) for node, code in lambdas if _essence(code) == _essence(value.__code__)]
    same = [(node, code) for node, code in alike if code.co_code == value.__code__.co_code]
    sources = {ast.unparse(node) for node, _ in same or alike}
    return sources.pop() if len(sources) == 1 else None


def _parsed(text: str) -> ast.Module:
    """Parse as much of a text as possible: its last line may open a bracket that is closed elsewhere."""
    for end in range(len(text), 0, -1):
        with contextlib.suppress(SyntaxError):
            return ast.parse(text[:end].strip())
    return ast.Module([], [])


def _code(node: ast.Lambda) -> CodeType:
    constants = compile(ast.Expression(node), "", "eval").co_consts
    return next(constant for constant in constants if inspect.iscode(constant))
