"""Causes of a different result: sources, environment, and state that no record holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from sacristan.runs.comparison.difference import diff
from sacristan.runs.query.flattening import mapping_of
from sacristan.runs.query.texts import list_text
from sacristan.runs.rerun.environment import Differing, parsed_sources
from sacristan.runs.rerun.planning import Plan
from sacristan.runs.rerun.record import Record, is_content_of
from sacristan.runs.rerun.verdict import DIVERGED, IDENTICAL, Verdict

__all__ = ["cause_notes", "changed_sources", "hash_order_sources"]

# The lab's own packages, whose results do not depend on the order of sets.
_LAB = ("configs/", "experiments/", "ingredients/", "observers/", "runs/", "sacristan/")
# Functions that turn a set into something without an order, or with a fixed one.
_ORDERLESS = frozenset(("sorted", "len", "min", "max", "any", "all", "set", "frozenset"))


def changed_sources(plan: Plan, new: Record) -> dict[str, str]:
    """Return the unified diff of each source that differs between a run and its reproduction, by name.

    None are returned if the two runs only imported different parts of the same code, which depends on how a run is
    recorded.
    """
    old = plan.record
    base = None if plan.restored is None else plan.restored.base

    def is_other(name: str) -> bool:
        if name in old.sources:
            return name in new.sources
        # Files that were restored from git belong to the record, imported or not.
        return base is None or not is_content_of(base / name, new.sources[name])

    diffs = diff(old.run, new.run).sources
    return diffs if any(is_other(name) for name in diffs) else {}


def cause_notes(
    plan: Plan, verdict: Verdict, sources: Mapping[str, str], differences: tuple[Differing, ...]
) -> Iterator[str]:
    """Yield what may have caused a verdict, a sentence each.

    `differences` are those of the environment that only the new run showed.
    """
    if verdict.verdict == DIVERGED:
        yield from _suspect_session(plan.record, verdict)
    loud = list_text(entry.name for entry in (*plan.environment.loud, *differences))
    if plan.restored is None:
        if verdict.verdict != IDENTICAL:
            yield _cause_in_place(plan.record, list_text(sources), loud)
    elif sources:
        yield f"the new run was not made of the recorded sources alone: {list_text(sources)} differ"
    elif verdict.verdict == DIVERGED and not loud:
        yield _unrecorded(plan.record)


def _suspect_session(record: Record, verdict: Verdict) -> Iterator[str]:
    """Yield which session of a resumed run may have differed from an unbroken run."""
    sessions = record.run.sessions
    if len(sessions) < 2:
        return
    last = verdict.first.step if verdict.first else None
    begun = [number for number, session in enumerate(sessions, 1) if number > 1 and _began_before(session, last)]
    if not begun:
        yield f"the first difference lies in session 1 of {len(sessions)}, so no resuming explains it"
        return
    number, session = begun[-1], sessions[begun[-1] - 1]
    step = session.get("step")
    at = f" at step {step}" if isinstance(step, int) else ""
    environment = mapping_of(session.get("changed_environment")).items()
    names = [f"{part} {name}" for part, entries in environment for name in mapping_of(entries)]
    changed = list_text([*(session.get("changed_sources") or ()), *names])
    why = f"{changed} had changed by then" if changed else "if it was not resumed exactly, an unbroken run differs"
    yield (
        f"run {record.id} was resumed: its session {number} of {len(sessions)} began{at}, before the first difference, "
        f"and is a suspect ({why}); to check the resuming of such a run: sacristan resume --verify"
    )


def _began_before(session: Mapping[str, Any], step: float | None) -> bool:
    begun = session.get("step")
    return step is None or not isinstance(begun, int) or begun < step


def _cause_in_place(record: Record, code: str, environment: str) -> str:
    """Return the cause that a run of today's sources differs, where `code` and `environment` name the differences."""
    if code and environment:
        return (
            f"code ({code}) and environment ({environment}) both differ; to tell them apart, run the recorded sources "
            "in today's environment, without --in-place"
        )
    if code:
        return f"the environment is the same: the difference comes from the code ({code})"
    if environment:
        return f"the sources are the same: the difference comes from the environment ({environment})"
    libraries = "libraries on PYTHONPATH or installed in editable form are not in the record, and may have changed; "
    return f"{libraries if record.libraries is None else ''}{_unrecorded(record)}"


def _unrecorded(record: Record) -> str:
    """Return what may have changed a result although no record shows a difference."""
    text = (
        "nothing recorded differs; a record does not include the time, random generators without a seed, environment "
        "variables that the sources do not name, files outside of its folders and those that other processes opened, "
        "and the network"
    )
    hash_seed = record.part("determinism").get("PYTHONHASHSEED", "0")
    files = hash_order_sources(record) if hash_seed in (None, "", "random") else []
    if not files:
        return text
    return (
        f"{text}; {list_text(files)} may depend on the order of a set or on hash(), which differ from process to "
        f"process: PYTHONHASHSEED was not set for run {record.id}; set it before a run to reproduce: PYTHONHASHSEED=0 "
        "python ..."
    )


def hash_order_sources(record: Record) -> list[str]:
    """Return the recorded sources that call `hash` or depend on the order of a set, without the lab's own packages."""
    return [
        name
        for name, tree in parsed_sources(record)
        if (name == record.mainfile_text or not name.startswith(_LAB)) and any(_uses_hash_order(tree))
    ]


def _uses_hash_order(tree: ast.AST) -> Iterator[bool]:
    """Yield for each expression of a tree whether it may depend on hashes."""
    harmless: set[ast.AST] = set()
    for node in ast.walk(tree):  # parents come before their children
        if isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and _name(node) in _ORDERLESS):
            harmless.update(ast.iter_child_nodes(node))
        called = _name(node) if isinstance(node, ast.Call) else ""
        is_set = isinstance(node, ast.Set | ast.SetComp) or called in ("set", "frozenset")
        yield (is_set and node not in harmless) or called == "hash"


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""
