"""`export`: whole runs in an archive, or a table of runs or metrics."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from runs.commands.terminal.arguments import add_runs, bound, open_given
from runs.commands.terminal.outcomes import print_left_out, print_problems, print_written
from runs.commands.terminal.selection import add_selection, find_chosen, has_conditions, limit_in, names_in
from runs.commands.terminal.text import harmless, is_terminal
from runs.errors import RunsError
from runs.query.strict_json import strict

if TYPE_CHECKING:
    from runs.stores.run import Run
    from runs.stores.store import Store

__all__ = ["add_arguments", "main"]

_FORMATS = ("zip", "csv", "json", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_runs(parser, "*")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="output file; tables go to stdout without it")
    help = "zip for whole runs, csv, json or parquet for a table (by the file's suffix)"
    parser.add_argument("--format", choices=_FORMATS, help=help)
    add_selection(parser)
    parser.add_argument("--limit", type=bound, default=0, metavar="N", help="maximum number of runs, 0 for all (0)")
    parser.add_argument("--columns", metavar="A,B,...", help="fields in the table (all of config and summary)")
    help = "a table of the points of these metrics, or of all"
    parser.add_argument("--metrics", nargs="*", metavar="NAME", help=help)
    parser.add_argument("--force", action="store_true", help="replace an existing FILE")


def main(arguments: argparse.Namespace) -> int:
    """Write the archive or the table."""
    from runs.drawing.output_file import check_output

    output = arguments.output
    suffix = output.suffix.removeprefix(".").lower() if output else ""
    format = arguments.format or (suffix if suffix in _FORMATS else "zip")
    if output is None and format in ("zip", "parquet"):
        raise RunsError(f"export: got no file, expected -o FILE.{format}")
    if format == "zip" and (arguments.metrics is not None or arguments.columns):
        raise RunsError("export: a table of --columns or --metrics is csv, json or parquet; add --format csv")
    if output is not None:
        check_output(output, overwrite=arguments.force, how="--force")
    with open_given(arguments) as store:
        columns = names_in(arguments.columns) if arguments.columns else None
        chosen = _chosen(arguments, store, format, columns)
        if format == "zip":
            return _export_archive(chosen, output)
        _export_table(chosen, columns, arguments.metrics, format, output)
    return 0


def _chosen(arguments: argparse.Namespace, store: Store, format: str, columns: Sequence[str] | None) -> list[Run]:
    if arguments.runs:
        if has_conditions(arguments) or arguments.limit:
            raise RunsError("export: got ids and conditions, expected one of them")
        return [store.get(key) for key in arguments.runs]
    found = find_chosen(store, arguments, columns or (), limit_in(arguments))
    if not found:
        raise RunsError("export: no run matches the conditions")
    if format == "zip" and not (has_conditions(arguments) or arguments.limit):
        raise RunsError("export: got no run, expected ids, or conditions such as --where 'lr<1e-3', or --limit")
    return found


def _export_archive(chosen: Sequence[Run], output: Path) -> int:
    from runs.transfer.archives import export_runs

    done = export_runs(chosen, output, overwrite=True)
    print_written(output, f"runs {', '.join(run.id for run in chosen)}, {done.num_files} files")
    print_left_out(done.left_out)
    return 0


def _export_table(
    chosen: Sequence[Run],
    columns: Sequence[str] | None,
    metrics: Sequence[str] | None,
    format: str,
    output: Path | None,
) -> None:
    from runs.transfer import tables

    rows: Any
    problems: dict[str, str] = {}
    if metrics is not None:
        names, rows = list(tables.METRIC_COLUMNS), tables.metric_rows(chosen, metrics, problems)
    else:
        names, rows, problems = tables.run_rows(chosen, columns)
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
