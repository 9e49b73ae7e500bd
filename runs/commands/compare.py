"""`compare`: groups of runs against each other, with tests and cautions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sacristan.runs.commands.terminal.arguments import add_json, confidence, open_given
from sacristan.runs.commands.terminal.selection import add_conditions, add_direction, add_groups, find_chosen, names_in
from sacristan.runs.commands.terminal.tables import Cell, Column, print_table
from sacristan.runs.commands.terminal.text import print_json, print_text
from sacristan.runs.documents.compared import Compared, comparison_of

if TYPE_CHECKING:
    from sacristan.runs.comparison.comparing import Comparison

__all__ = ["JSON", "add_arguments", "main"]

JSON = Compared
_EPILOG = """Per group: n repetitions, mean, standard deviation (n - 1), Student's interval of the mean, best run.
Between groups: the paired t-test if both share at least two values of --over, and at least half of theirs; else
Welch's t-test. Effects: d_z (paired) and Hedges' g, both corrected for small samples. p is Holm's for all pairs. Only
completed runs count; excluded runs are named. docs/statistics.md cites each method."""
_METRIC_HELP = "field to compare by, such as val/accuracy.max, result or duration"
_MODE_HELP = "better direction; auto: as the runs record it (auto)"
_MAX_EXCLUDED = 20
_STYLES = {"first": "green", "second": "green", "unclear": "", "too few": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    add_groups(parser, "fields that define the groups", required=True)
    parser.add_argument("--metric", required=True, metavar="FIELD", help=_METRIC_HELP)
    add_conditions(parser)
    add_direction(parser, _MODE_HELP)
    parser.add_argument("--test", choices=("auto", "paired", "welch"), default="auto", help="use this test (auto)")
    parser.add_argument("--confidence", type=confidence, default=0.95, metavar="C", help="of the intervals (0.95)")
    parser.add_argument("--any-status", action="store_true", help="also count runs that did not complete")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--latex", action="store_true", help="print a table for LaTeX, with the rules of booktabs")
    add_json(formats)


def main(arguments: argparse.Namespace) -> int:
    """Compare the groups, and print the result."""
    from sacristan.runs.comparison.comparing import compare
    from sacristan.runs.comparison.reporting import as_latex

    by, over = names_in(*arguments.by), names_in(*arguments.over)
    columns = (*by, *over, arguments.metric, "status", "command", "config")
    with open_given(arguments) as store:
        comparison = compare(
            find_chosen(store, arguments, columns),
            by,
            over,
            arguments.metric,
            arguments.confidence,
            mode=arguments.mode,
            test=arguments.test,
            any_status=arguments.any_status,
        )
    if arguments.json:
        print_json(comparison_of(comparison))
    elif arguments.latex:
        print(as_latex(comparison), end="")
    else:
        _print(comparison)
    return 0


def _print(comparison: Comparison) -> None:
    from sacristan.runs.comparison.reporting import PAIR_HEAD, group_head, group_rows, notes, pair_rows

    print_text(comparison.title, "bold")
    print_table(_columns(group_head(comparison)), [list(map(Cell, row)) for row in group_rows(comparison)])
    if comparison.pairs:
        print()
        rows = [
            [Cell(row[0]), Cell(row[1], _STYLES[pair.verdict]), *map(Cell, row[2:])]
            for pair, row in zip(comparison.pairs, pair_rows(comparison), strict=True)
        ]
        print_table(_columns(PAIR_HEAD, kept=2), rows)
    for note in notes(comparison):
        print_text(note)
    entries = comparison.excluded
    excluded = [f"excluded: run {entry.run.id} ({entry.group}) {entry.reason}" for entry in entries[:_MAX_EXCLUDED]]
    if len(entries) > _MAX_EXCLUDED:
        excluded.append(f"excluded: {len(entries) - _MAX_EXCLUDED} more; --json names them")
    _print_lines(excluded)
    _print_lines([f"caution: {caution}" for caution in comparison.cautions], "yellow")


def _print_lines(lines: list[str], style: str = "") -> None:
    """Print an empty line and then these lines, if there are any."""
    if lines:
        print()
    for line in lines:
        print_text(line, style)


def _columns(head: tuple[str, ...], kept: int = 1) -> list[Column]:
    numbers = ("n", "mean", "std", "best", "p", "p (Holm)")
    wholes = ("mean difference", "effect")
    return [
        Column(title, is_number=title in numbers, is_kept=i < kept, is_whole=title in wholes or "interval" in title)
        for i, title in enumerate(head)
    ]
