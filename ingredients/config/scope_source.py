"""Source code of a config scope: the entries that it reads, declares and documents, and the code to run."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import itertools
import re
import textwrap
import tokenize
import types
from collections.abc import Callable, Iterator
from typing import Any

from sacristan.ingredients.errors import ConfigError

_NOT_DOCUMENTATION = re.compile(r"\s*(noqa|type:|pylint:|noinspection|fmt:|ruff:|pragma:)")


@dataclasses.dataclass(frozen=True)
class ScopeSource:
    """The parts of a config scope; `code` is its body, which leaves the entries in a mapping for locals."""

    arguments: list[str]
    declared: dict[str, Any]
    docs: dict[str, str]
    imported: frozenset[str]
    code: types.CodeType


def read_scope(function: Callable) -> ScopeSource:
    """Read the source of a config scope; raise `ConfigError` for a lambda, a `return`, or unsupported arguments."""
    source = textwrap.dedent(inspect.getsource(function))
    tree = _parse(source)
    nodes = list(ast.walk(tree))
    arguments, declared, docs = _arguments(function), _declarations(tree, function), _documentation(nodes, source)
    # Compiled last, because that moves the tree to its lines in the file.
    return ScopeSource(arguments, declared, docs, _imported(nodes), _compile(tree, function))


def _arguments(function: Callable) -> list[str]:
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise ConfigError(
                f"config scope {function.__name__}: got the argument {parameter}, expected the name of an entry or "
                f"ingredient alone; write {name}"
            )
    return list(parameters)


def _parse(source: str) -> ast.FunctionDef:
    tree = ast.parse(source).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise ConfigError(f"a config scope is a function written with def; got {ast.unparse(tree)[:60]}")
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    tree.body = body or [ast.Pass(lineno=tree.lineno, col_offset=0)]
    return tree


def _compile(tree: ast.FunctionDef, function: Callable) -> types.CodeType:
    """Compile the scope's body as a module, annotated entries as plain assignments."""
    body = []
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            plain = ast.Assign(targets=[statement.target], value=statement.value)
            statement = ast.copy_location(plain, statement)
        body.append(statement)
    module = ast.Module(body=body, type_ignores=[])
    ast.increment_lineno(module, function.__code__.co_firstlineno - 1)
    try:
        return compile(module, inspect.getfile(function), "exec")
    except SyntaxError as error:
        raise ConfigError(
            f"config scope {function.__name__}: {error.msg} (line {error.lineno} of {error.filename}); a scope neither "
            "returns nor yields: its local variables are the entries"
        ) from None


def _declarations(tree: ast.FunctionDef, function: Callable) -> dict[str, Any]:
    declared = {}
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            expression = ast.unparse(statement.annotation)
            declared[statement.target.id] = eval(expression, dict(function.__globals__))
    return declared


def _imported(nodes: list[ast.AST]) -> frozenset[str]:
    imports = (node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    return frozenset(alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names)


def _documentation(nodes: list[ast.AST], source: str) -> dict[str, str]:
    """Return the comment of each entry, by dotted name: the one after it, or all lines right above it."""
    comments = _Comments(source)
    docs: dict[str, str] = {}

    def add(name: str, node: ast.stmt | ast.expr, value: ast.expr | None) -> None:
        line, last_line = _lines_of(node)
        text = comments.of(line, last_line)
        if text:
            docs.setdefault(name, text)
        for key, inner in _literal_items(value):
            if _lines_of(inner) != (line, last_line):
                add(f"{name}.{key}", inner, inner)

    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            for name in names:
                add(name, node, node.value if len(names) == 1 else None)
    return docs


def _lines_of(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.end_lineno or node.lineno


def _literal_items(value: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    """Yield the items of a literal dict, or of a call of `dict`, whose keys are strings."""
    if isinstance(value, ast.Dict):
        for key, inner in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, inner
    elif isinstance(value, ast.Call) and ast.unparse(value.func) == "dict":
        yield from ((keyword.arg, keyword.value) for keyword in value.keywords if keyword.arg is not None)


class _Comments:
    """The comments of a source that document something, by line."""

    def __init__(self, source: str) -> None:
        self._trailing: dict[int, str] = {}
        self._whole_line: dict[int, str] = {}
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            text = token.string.lstrip("#").strip() if token.type == tokenize.COMMENT else ""
            if text and not _NOT_DOCUMENTATION.match(text):
                is_alone = not token.line[: token.start[1]].strip()
                (self._whole_line if is_alone else self._trailing)[token.start[0]] = text

    def of(self, line: int, last_line: int) -> str:
        """Return the comment of a statement: after its last line, after its first one, or right above it."""
        trailing = self._trailing.get(last_line) or self._trailing.get(line)
        if trailing:
            return trailing
        above = itertools.takewhile(self._whole_line.__contains__, range(line - 1, 0, -1))
        return " ".join(reversed([self._whole_line[number] for number in above]))
