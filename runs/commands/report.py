"""`report`: runs as one HTML file to share."""

from __future__ import annotations

import argparse

from sacristan.runs.commands.terminal.arguments import add_output, add_runs, bound, open_given, output_of
from sacristan.runs.commands.terminal.outcomes import print_problems, print_written
from sacristan.runs.commands.terminal.selection import (
    add_curves,
    add_direction,
    add_groups,
    add_selection,
    choose_runs,
    names_in,
)
from sacristan.runs.errors import RunsError
from sacristan.runs.query.texts import count_text

__all__ = ["NO_JSON", "add_arguments", "main"]

NO_JSON = "it writes a page to read"

_EPILOG = """The file needs only a browser: it has no script and loads nothing. With --by, curves are means of the
groups; with --compare, the groups are compared as by `sacristan compare`."""
_LIMIT = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    add_runs(parser, "*", "ids, uids, beginnings of uids, or latest; or choose with --where")
    add_output(parser, "output file, such as report.html", required=True)
    parser.add_argument("--title", default="Runs", help="title of the report")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME", help="draw these (all, 12 at most)")
    add_selection(parser)
    help = f"maximum number of runs besides named ones, 0 for all ({_LIMIT}; with --by all)"
    parser.add_argument("--limit", type=bound, metavar="N", help=help)
    add_groups(parser, "fields that define groups")
    help = "with --by: field to compare the groups by, such as val/accuracy.max"
    parser.add_argument("--compare", metavar="FIELD", help=help)
    add_direction(parser, "with --compare: better direction; auto: as the runs record it (auto)")
    add_curves(parser)


def main(arguments: argparse.Namespace) -> int:
    """Write the report."""
    from sacristan.runs.comparison.html_report import write_report

    output_of(arguments)
    output, by = arguments.output, names_in(*arguments.by)
    if arguments.compare and not by:
        raise RunsError("--compare: expected --by too, the fields that define the groups to compare")
    with open_given(arguments) as store:
        runs, note = choose_runs(store, arguments, ("status",), 0 if by else _LIMIT, may_be_all=bool(by))
        write_report(
            runs,
            output,
            title=arguments.title,
            metrics=arguments.metric,
            by=by,
            over=names_in(*arguments.over),
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
