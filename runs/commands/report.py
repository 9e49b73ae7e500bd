"""`report`: runs as one HTML file to send to somebody."""

from __future__ import annotations

import argparse
from pathlib import Path

from runs.commands.terminal.arguments import add_runs, bound, open_given, smoothing
from runs.commands.terminal.outcomes import print_problems, print_written
from runs.commands.terminal.selection import add_direction, add_selection, find_named_or_chosen, names_in
from runs.errors import RunsError

__all__ = ["add_arguments", "main"]

_EPILOG = """The file needs only a browser: it has no script and loads nothing. With --by, curves are means of the
groups; with --compare, the groups are compared as by `runs compare`."""
_LIMIT = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    add_runs(parser, "*", "ids, uids, beginnings of uids, or latest; or choose with --where")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="output file, such as report.html"
    )
    parser.add_argument("--title", default="Runs", help="title of the report")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME", help="draw these (all, 12 at most)")
    add_selection(parser)
    help = f"maximum number of runs besides named ones, 0 for all ({_LIMIT}; with --by all)"
    parser.add_argument("--limit", type=bound, metavar="N", help=help)
    parser.add_argument("--by", action="append", default=[], metavar="FIELD,...", help="fields that define groups")
    help = "with --by: runs of a group with the same value count once"
    parser.add_argument("--over", action="append", default=[], metavar="FIELD,...", help=help)
    help = "with --by: field to compare the groups by, such as val/accuracy.max"
    parser.add_argument("--compare", metavar="FIELD", help=help)
    add_direction(parser, "with --compare: better direction; auto: as the runs record it (auto)")
    help = "weight of earlier points, from 0 to below 1, as in TensorBoard (0)"
    parser.add_argument("--smoothing", type=smoothing, default=0.0, metavar="W", help=help)
    parser.add_argument("--x", choices=("step", "epoch", "time", "wall"), default="step", help="horizontal axis (step)")
    parser.add_argument("--log-y", action="store_true", help="logarithmic values")
    parser.add_argument("--force", action="store_true", help="replace an existing FILE")


def main(arguments: argparse.Namespace) -> int:
    """Write the report."""
    from runs.comparison.report import write_report
    from runs.drawing.output_file import check_output

    output, by = arguments.output, names_in(*arguments.by)
    check_output(output, overwrite=arguments.force, how="--force")
    if arguments.compare and not by:
        raise RunsError("--compare: expected --by too, the fields that define the groups to compare")
    with open_given(arguments) as store:
        found, note = find_named_or_chosen(store, arguments, ("status",), 0 if by else _LIMIT)
        write_report(
            found,
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
    print_problems({run.id: run.problem for run in found if run.problem})
    print_written(output, f"{len(found)} run{'s' * (len(found) != 1)}", note)
    return 0
