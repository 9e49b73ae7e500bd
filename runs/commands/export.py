"""`export`: whole runs in an archive, or a table of runs or metrics."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from runs.commands.terminal.arguments import add_output, add_runs, bound, open_given, output_of
from runs.commands.terminal.outcomes import print_left_out, print_problems, print_written
from runs.commands.terminal.selection import add_selection, choose_runs, names_in
from runs.commands.terminal.text import harmless, is_terminal
from runs.errors import RunsError
from runs.query.strict_json import strict

if TYPE_CHECKING:
    from runs.stores.run import Run

__all__ = ["add_arguments", "main"]

_FORMATS = ("zip", "csv", "json", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_runs(parser, "*")
    add_output(parser, "output file; tables go to stdout without it")
    help = "zip for whole runs, csv, json or parquet for a table (by the file's suffix)"
    parser.add_argument("--format", choices=_FORMATS, help=help)
    add_selection(parser)
    parser.add_argument("--limit", type=bound, metavar="N", help="maximum number of runs, 0 for all (0)")
    parser.add_argument("--columns", metavar="A,B,...", help="fields in the table (all of config and summary)")
    help = "a table of the points of these metrics, or of all"
    parser.add_argument("--metrics", nargs="*", metavar="NAME", help=help)


def main(arguments: argparse.Namespace) -> int:
    """Write the archive or the table."""
    format = _format_of(arguments)
    output = output_of(arguments)
    with open_given(arguments) as store:
        columns = names_in(arguments.columns) if arguments.columns else None
        runs, _ = choose_runs(store, arguments, columns or (), may_be_all=format != "zip", lists=False)
        if format == "zip":
            _export_archive(runs, arguments.output)
        else:
            _export_table(runs, columns, arguments.metrics, format, output)
    return 0


def _format_of(arguments: argparse.Namespace) -> str:
    suffix = arguments.output.suffix.removeprefix(".").lower() if arguments.output else ""
    format = arguments.format or (suffix if suffix in _FORMATS else "zip")
    if arguments.output is None and format in ("zip", "parquet"):
        raise RunsError(f"export: got no file, expected -o FILE.{format}")
    if format == "zip" and (arguments.metrics is not None or arguments.columns):
        raise RunsError("export: a table of --columns or --metrics is csv, json or parquet; add --format csv")
    return format


def _export_archive(runs: Sequence[Run], output: Path) -> None:
    from runs.transfer.archives import export_runs

    done = export_runs(runs, output, overwrite=True)
    print_written(output, f"runs {', '.join(run.id for run in runs)}, {done.num_files} files")
    print_left_out(done.left_out)


def _export_table(
    runs: Sequence[Run],
    columns: Sequence[str] | None,
    metrics: Sequence[str] | None,
    format: str,
    output: Path | None,
) -> None:
    from runs.transfer import tables

    rows: Any
    problems: dict[str, str] = {}
    if metrics is not None:
        names, rows = list(tables.METRIC_COLUMNS), tables.metric_rows(runs, metrics, problems)
    else:
        names, rows, problems = tables.run_rows(runs, columns)
    if format == "parquet" and output is not None:
        tables.write_parquet(output, names, rows)
    else:
        with _opened(output) as stream:
            if format == "json":
                tables.write_json(stream, rows, strict)
            else:
                tables.write_csv(stream, names, rows, harmless if output is None and is_terminal() else str)
    print_problems(problems)


@contextlib.contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    from runs.drawing.output_file import writing

    if output is None:
        yield sys.stdout
        return
    with writing(output, overwrite=True) as binary:
        text = io.TextIOWrapper(binary, "utf-8", errors="backslashreplace", newline="")
        yield text
        text.flush()
        text.detach()
