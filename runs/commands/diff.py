"""`diff`: what differs between two runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Literal

from runs.commands.terminal.arguments import add_json, add_run, open_given
from runs.commands.terminal.tables import Cell, Column, print_table
from runs.commands.terminal.text import print_json, print_sources, print_text, print_unified
from runs.documents.compared import Differences, differences_of
from runs.query.texts import is_number, value_text

if TYPE_CHECKING:
    from runs.query.flattening import Changes

    _Section = Literal["command", "config", "git", "packages", "outcome", "metrics"]

__all__ = ["JSON", "add_arguments", "main"]

JSON = Differences
_SECTIONS: tuple[_Section, ...] = ("command", "config", "git", "packages", "outcome", "metrics")
_EPILOG = """The exit code is 0, whether the runs differ or not; with --exit-code it is 0 if they are the same, 1 if
they differ, and 2 after an error. Times, hosts and metrics named system/... are not compared."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    add_run(parser, "a", "id, uid, beginning of a uid, or latest")
    add_run(parser, "b", "the other run")
    parser.add_argument("--log", action="store_true", help="also compare their output")
    parser.add_argument("--exit-code", action="store_true", help="exit with 1 if they differ")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the differences."""
    if arguments.exit_code:
        arguments.error_code = 2
    with open_given(arguments) as store:
        old, new = store.get(arguments.a), store.get(arguments.b)
        found = differences_of(old, new, with_output=arguments.log)
    if arguments.json:
        print_json(found)
    else:
        _print(found)
    return 1 if found["differ"] and arguments.exit_code else 0


def _print(found: Differences) -> None:
    old, new = found["a"]["id"], found["b"]["id"]
    if not found["differ"]:
        print_text(f"runs {old} and {new} do not differ")
        return
    for name in _SECTIONS:
        if part := found[name]:
            print_text(name, "bold")
            _print_changes(part, name, old, new)
    print_sources(found["sources"])
    if output := found.get("output"):
        print_text("output", "bold")
        print_unified(output)


def _print_changes(part: Changes, section: str, old: str, new: str) -> None:
    rows = []
    for name, (before, after) in part.changed.items():
        if section == "git" and name == "diff":
            before, after = (f"{len(str(text or '').splitlines())} lines" for text in (before, after))
        step = f"{after - before:+.5g}" if section == "metrics" and is_number(before) and is_number(after) else ""
        rows.append([Cell(f"  {name}"), Cell(_text(before), "red"), Cell(_text(after), "green"), Cell(step)])
    rows += [[Cell(f"- {name}"), Cell(_text(value), "red"), Cell(""), Cell("")] for name, value in part.removed.items()]
    rows += [[Cell(f"+ {name}"), Cell(""), Cell(_text(value), "green"), Cell("")] for name, value in part.added.items()]
    print_table(
        [Column("  name", is_kept=True), Column(f"run {old}"), Column(f"run {new}"), Column(is_number=True)], rows
    )


def _text(value: Any) -> str:
    return "None" if value is None else value_text(value, exact=not isinstance(value, float))
