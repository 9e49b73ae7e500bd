"""`diff`: differences between two runs."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from sacristan.runs.commands.terminal.arguments import add_json, add_run, open_given
from sacristan.runs.commands.terminal.tables import Cell, Column, print_table
from sacristan.runs.commands.terminal.text import print_json, print_sources, print_text, print_unified
from sacristan.runs.documents.compared import Differences, differences_of
from sacristan.runs.query.texts import count_text, is_number, value_text

if TYPE_CHECKING:
    from sacristan.runs.query.flattening import Changes
    from sacristan.runs.stores.run import Run

    _Section = Literal["command", "config", "git", "packages", "outcome", "metrics"]

__all__ = ["JSON", "add_arguments", "main"]

JSON = Differences
_SECTIONS: tuple[_Section, ...] = ("command", "config", "outcome", "metrics", "git", "packages")
_EPILOG = """The exit code is 0, whether the runs differ or not; with --exit-code it is 0 if they are the same, 1 if
they differ, and 2 after an error. Times, hosts and metrics named system/... are not compared."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    add_run(parser, "a", "id, uid, beginning of a uid, or latest")
    add_run(parser, "b", "the other run")
    parser.add_argument("--all", action="store_true", help="show all statistics of metrics, not only last and best")
    parser.add_argument("--log", action="store_true", help="also compare their output")
    parser.add_argument("--exit-code", action="store_true", help="exit with 1 if they differ")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the differences."""
    if arguments.exit_code:
        arguments.error_code = 2
    with open_given(arguments) as store:
        old, new = store.get(arguments.a), store.get(arguments.b)
        differences = differences_of(old, new, with_output=arguments.log)
        hidden = set() if arguments.all or arguments.json else _minor_statistics(differences["metrics"], [old, new])
    if arguments.json:
        print_json(differences)
    else:
        _print(differences, hidden)
    return 1 if differences["differ"] and arguments.exit_code else 0


def _minor_statistics(metrics: Changes, runs: Sequence[Run]) -> set[str]:
    """Return the statistics of metrics to fold: all but the last and the best value, or the first that differs."""
    from sacristan.runs.comparison.comparing import direction_of
    from sacristan.runs.errors import ComparisonError

    differing: dict[str, list[str]] = {}
    for name in (*metrics.changed, *metrics.removed, *metrics.added):
        metric, _, statistic = name.rpartition(".")
        differing.setdefault(metric, []).append(statistic)
    minor: set[str] = set()
    for metric, statistics in differing.items():
        telling = {"last"}
        with contextlib.suppress(ComparisonError):
            telling.add(direction_of(runs, metric))
        shown = telling.intersection(statistics) or {statistics[0]}
        minor |= {f"{metric}.{statistic}" for statistic in statistics if statistic not in shown}
    return minor


def _print(differences: Differences, hidden: set[str]) -> None:
    old, new = differences["a"]["id"], differences["b"]["id"]
    if not differences["differ"]:
        print_text(f"runs {old} and {new} do not differ")
        return
    for name in _SECTIONS:
        if part := differences[name]:
            print_text(name, "bold")
            _print_changes(part, name, old, new, hidden if name == "metrics" else set())
    print_sources(differences["sources"])
    if output := differences.get("output"):
        print_text("output", "bold")
        print_unified(output)


def _print_changes(part: Changes, section: str, old: str, new: str, hidden: set[str]) -> None:
    titles = [Column("  name", is_kept=True), Column(f"run {old}"), Column(f"run {new}"), Column(is_number=True)]
    print_table(titles, [cells for name, cells in _rows(part, section) if name not in hidden])
    if hidden:
        differ = count_text(len(hidden), "more statistic")
        print_text(f"  ({differ} {'differs' if len(hidden) == 1 else 'differ'}; --all shows them)", "dim")


def _rows(part: Changes, section: str) -> list[tuple[str, list[Cell]]]:
    rows = []
    for name, (before, after) in part.changed.items():
        if section == "git" and name == "diff":
            before, after = (f"{len(str(text or '').splitlines())} lines" for text in (before, after))
        step = f"{after - before:+.5g}" if section == "metrics" and is_number(before) and is_number(after) else ""
        rows.append((name, [Cell(f"  {name}"), Cell(_text(before), "red"), Cell(_text(after), "green"), Cell(step)]))
    for name, value in part.removed.items():
        rows.append((name, [Cell(f"- {name}"), Cell(_text(value), "red"), Cell(""), Cell("")]))
    for name, value in part.added.items():
        rows.append((name, [Cell(f"+ {name}"), Cell(""), Cell(_text(value), "green"), Cell("")]))
    return rows


def _text(value: Any) -> str:
    return "None" if value is None else value_text(value, exact=not isinstance(value, float))
