"""Possible causes of another outcome where nothing that is recorded differs: what a record does not hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from runs.errors import StoreError
from runs.rerun.record import mapping
from runs.rerun.wording import some
from runs.stores.run import Run

__all__ = ["hash_order_sources", "unwatched"]

# The lab's own packages, whose outcomes do not depend on the order of sets.
_LAB = ("configs/", "experiments/", "ingredients/", "observers/", "runs/")
# What makes of a set something that has no order either, or always the same one.
_ORDERLESS = frozenset(("sorted", "len", "min", "max", "any", "all", "set", "frozenset"))


def unwatched(run: Run) -> str:
    """Return in words what may have changed the outcome of a run though nothing that it recorded differs."""
    text = (
        "nothing that is recorded differs; not recorded are the time, random generators without a seed, environment "
        "variables that the sources do not name, files outside of its folders and those that other processes opened, "
        "and the network"
    )
    flags = mapping(run.provenance.get("determinism"))
    if flags.get("PYTHONHASHSEED", "0") not in (None, "", "random"):
        return text
    files = hash_order_sources(run)
    if not files:
        return text
    return (
        f"{text}; {some(files)} may depend on the order of a set or on hash(), which are others in each process: "
        f"PYTHONHASHSEED was not set for run {run.id}; set it before a run that is to be reproduced: PYTHONHASHSEED=0 "
        "python ..."
    )


def hash_order_sources(run: Run) -> list[str]:
    """Return the recorded sources, but for the lab's packages, that call `hash` or use a set in an order."""
    main = str(mapping(run["experiment"]).get("mainfile"))
    found = []
    for name, content in sorted(run.sources.items()):
        if name.endswith(".py") and (name == main or not name.startswith(_LAB)):
            try:
                tree = ast.parse(content.read())
            except (StoreError, SyntaxError, ValueError, RecursionError):
                continue
            if any(_uses_hash_order(tree)):
                found.append(name)
    return found


def _uses_hash_order(tree: ast.AST) -> Iterator[bool]:
    """Yield whether each expression of a tree may depend on hashes."""
    harmless: set[ast.AST] = set()
    for node in ast.walk(tree):  # parents come before their children
        if isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and _name(node) in _ORDERLESS):
            harmless.update(ast.iter_child_nodes(node))
        called = _name(node) if isinstance(node, ast.Call) else ""
        is_set = isinstance(node, ast.Set | ast.SetComp) or called in ("set", "frozenset")
        yield (is_set and node not in harmless) or called == "hash"


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""
