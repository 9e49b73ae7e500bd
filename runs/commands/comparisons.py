"""Commands that compare and report runs: `diff`, `compare`, `report`, `card`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from sacristan.runs.commands import terminal
from sacristan.runs.commands.terminal.outcomes import print_problems, print_written
from sacristan.runs.commands.terminal.text import (
    Cell,
    Column,
    print_json,
    print_sources,
    print_table,
    print_text,
    print_unified,
)
from sacristan.runs.documents.compared import Compared, Differences, comparison_of, differences_of
from sacristan.runs.errors import RunsError
from sacristan.runs.query.texts import count_text, is_number, value_text

if TYPE_CHECKING:
    from sacristan.runs.query import Changes
    from sacristan.runs.stores import Run

    _Section = Literal["command", "config", "git", "packages", "outcome", "metrics"]
    from sacristan.runs.comparison.comparing import Comparison

_SECTIONS: tuple[_Section, ...] = ("command", "config", "outcome", "metrics", "git", "packages")
_DIFF_EPILOG = """\
The exit code is 0, whether the runs differ or not; with --exit-code it is 0 if they are the same, 1 if
they differ, and 2 after an error. Times, hosts and metrics named system/... are not compared."""
_COMPARE_EPILOG = """\
Per group: n repetitions, mean, standard deviation (n - 1), Student's interval of the mean, best run.
Between groups: the paired t-test if both share at least two values of --over, and at least half of theirs; else
Welch's t-test. Effects: d_z (paired) and Hedges' g, both corrected for small samples. p is Holm's for all pairs. Only
completed runs count; excluded runs are named. docs/statistics.md cites each method."""
_METRIC_HELP = "field to compare by, such as val/accuracy.max, result or duration"
_MODE_HELP = "better direction; auto: as the runs record it (auto)"
_MAX_EXCLUDED = 20
_STYLES = {"first": "green", "second": "green", "unclear": "", "too few": "yellow"}
_REPORT_EPILOG = """\
The file needs only a browser: it has no script and loads nothing. With --by, curves are means of the
groups; with --compare, the groups are compared as by `sacristan compare`."""
_LIMIT = 20


class Diff:
    """`diff`: differences between two runs."""

    JSON = Differences

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = _DIFF_EPILOG
        terminal.add_run(parser, "a", "id, uid, beginning of a uid, or latest")
        terminal.add_run(parser, "b", "the other run")
        parser.add_argument("--all", action="store_true", help="show all statistics of metrics, not only last and best")
        parser.add_argument("--log", action="store_true", help="also compare their output")
        parser.add_argument("--exit-code", action="store_true", help="exit with 1 if they differ")
        terminal.add_json(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        if arguments.exit_code:
            arguments.error_code = 2
        with terminal.open_given(arguments) as store:
            old, new = store.get(arguments.a), store.get(arguments.b)
            differences = differences_of(old, new, with_output=arguments.log)
            hidden = set() if arguments.all or arguments.json else _minor_statistics(differences["metrics"], [old, new])
        if arguments.json:
            print_json(differences)
        else:
            _print_differences(differences, hidden)
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


def _print_differences(differences: Differences, hidden: set[str]) -> None:
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


class Compare:
    """`compare`: groups of runs against each other, with tests and cautions."""

    JSON = Compared

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = _COMPARE_EPILOG
        terminal.add_groups(parser, "fields that define the groups", required=True)
        parser.add_argument("--metric", required=True, metavar="FIELD", help=_METRIC_HELP)
        terminal.add_conditions(parser)
        terminal.add_direction(parser, _MODE_HELP)
        parser.add_argument("--test", choices=("auto", "paired", "welch"), default="auto", help="use this test (auto)")
        parser.add_argument(
            "--confidence", type=terminal.confidence, default=0.95, metavar="C", help="of the intervals (0.95)"
        )
        parser.add_argument("--any-status", action="store_true", help="also count runs that did not complete")
        formats = parser.add_mutually_exclusive_group()
        formats.add_argument("--latex", action="store_true", help="print a table for LaTeX, with the rules of booktabs")
        terminal.add_json(formats)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.comparison.comparing import compare
        from sacristan.runs.comparison.reports import as_latex

        by, over = terminal.names_in(*arguments.by), terminal.names_in(*arguments.over)
        columns = (*by, *over, arguments.metric, "status", "command", "config")
        with terminal.open_given(arguments) as store:
            comparison = compare(
                terminal.find_chosen(store, arguments, columns),
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
            _print_comparison(comparison)
        return 0


def _print_comparison(comparison: Comparison) -> None:
    from sacristan.runs.comparison.reports import PAIR_HEAD, group_head, group_rows, notes, pair_rows

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


class Report:
    """`report`: runs as one HTML file to share."""

    NO_JSON = "it writes a page to read"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = _REPORT_EPILOG
        terminal.add_runs(parser, "*", "ids, uids, beginnings of uids, or latest; or choose with --where")
        terminal.add_output(parser, "output file, such as report.html", required=True)
        help = "write a report of the store, by its title, or a Markdown file with blocks, as .html or .md"
        parser.add_argument("--page", metavar="TITLE", help=help)
        parser.add_argument("--title", default="Runs", help="title of the report")
        parser.add_argument(
            "--metric", action="append", default=[], metavar="NAME", help="draw these (all, 12 at most)"
        )
        terminal.add_selection(parser)
        help = f"maximum number of runs besides named ones, 0 for all ({_LIMIT}; with --by all)"
        parser.add_argument("--limit", type=terminal.bound, metavar="N", help=help)
        terminal.add_groups(parser, "fields that define groups")
        help = "with --by: field to compare the groups by, such as val/accuracy.max"
        parser.add_argument("--compare", metavar="FIELD", help=help)
        terminal.add_direction(parser, "with --compare: better direction; auto: as the runs record it (auto)")
        terminal.add_curves(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.comparison.reports import write_report

        terminal.output_of(arguments)
        if arguments.page is not None:
            return _write_page(arguments)
        output, by = arguments.output, terminal.names_in(*arguments.by)
        if arguments.compare and not by:
            raise RunsError("--compare: expected --by too, the fields that define the groups to compare")
        with terminal.open_given(arguments) as store:
            runs, note = terminal.choose_runs(store, arguments, ("status",), 0 if by else _LIMIT, may_be_all=bool(by))
            write_report(
                runs,
                output,
                title=arguments.title,
                metrics=arguments.metric,
                by=by,
                over=terminal.names_in(*arguments.over),
                compared=arguments.compare,
                mode=arguments.mode,
                x=arguments.x,
                smoothing=arguments.smoothing,
                log_y=arguments.log_y,
                overwrite=arguments.force,
            )
        print_problems({run.id: run.problem for run in runs if run.problem})
        print_written(output, count_text(len(runs), "run"), note)
        return 0


def _write_page(arguments: argparse.Namespace) -> int:
    from sacristan.runs.comparison.report_pages import read_page, write_page

    if arguments.runs or arguments.where:
        raise RunsError("--page: expected no runs and no conditions; the blocks of the report name its runs")
    with terminal.open_given(arguments) as store:
        report = read_page(store, arguments.page, store.author.name)
        write_page(store, report, arguments.output, overwrite=arguments.force)
    print_written(arguments.output, f"report {report.title!r}")
    return 0


class Card:
    """`card`: a model card in Markdown."""

    NO_JSON = "it writes a page to read"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        terminal.add_run(parser)
        terminal.add_output(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.comparison.model_card import model_card
        from sacristan.runs.drawing.output_file import writing

        output = terminal.output_of(arguments)
        with terminal.open_given(arguments) as store:
            card = model_card(store.get(arguments.run))
        if output is None:
            for line in card.splitlines():
                print_text(line)
            return 0
        with writing(output, overwrite=arguments.force) as stream:
            stream.write(card.encode(errors="backslashreplace"))
        return 0
