"""`export`: whole runs in an archive, a table of runs or metrics, or runs for another tracker."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.observers.record.redaction import hide_passwords
from sacristan.runs.commands import terminal
from sacristan.runs.commands.terminal.outcomes import print_left_out, print_problems, print_written
from sacristan.runs.commands.terminal.text import harmless, is_terminal, print_text, print_to_stderr
from sacristan.runs.errors import RunsError
from sacristan.runs.query.texts import count_text, list_text

if TYPE_CHECKING:
    from sacristan.runs.stores import Run
    from sacristan.runs.transfer.anonymous import AnonymousRuns

NO_JSON = "with `--format json` it prints a table as a list of objects, one for each run or point"

_TABLES = ("csv", "json", "parquet")
_TRACKERS = ("tensorboard", "mlflow", "wandb")
_ARCHIVES = ("zip", "rocrate")
_FORMATS = (*_ARCHIVES, *_TABLES, *_TRACKERS)
_STDOUT = Path("/dev/stdout")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    terminal.add_runs(parser, "*")
    terminal.add_output(
        parser, "output file, or a tracker's folder or address; tables go to stdout without it", type=_place
    )
    help = (
        "zip or rocrate for whole runs; csv, json or parquet for a table; tensorboard, mlflow or wandb for another "
        "tracker (by the file's suffix)"
    )
    parser.add_argument("--format", choices=_FORMATS, help=help)
    terminal.add_selection(parser)
    parser.add_argument("--limit", type=terminal.bound, metavar="N", help="maximum number of runs, 0 for all (0)")
    parser.add_argument("--columns", metavar="A,B,...", help="fields in the table (all of config and summary)")
    help = "a table of the points of these metrics, or of all"
    parser.add_argument("--metrics", nargs="*", metavar="NAME", help=help)
    help = "for blind review: replace names of users, machines, paths, addresses and commits"
    parser.add_argument("--anonymous", action="store_true", help=help)
    parser.add_argument("--hide", action="append", default=[], metavar="WORD", help="with --anonymous: a further word")
    help = "with --anonymous: do not hide this name, and export files of this name (or pattern) that cannot be searched"
    parser.add_argument("--keep", action="append", default=[], metavar="NAME", help=help)


@dataclasses.dataclass(frozen=True)
class _Export:
    """Format, place (None for stdout) and columns of an export; without `metrics`, a table has runs."""

    format: str
    output: Path | str | None
    columns: Sequence[str] | None
    metrics: Sequence[str] | None
    is_staged: bool = False


def main(arguments: argparse.Namespace) -> int:
    """Write the archive, the table, or the runs of a tracker."""
    format = _format_of(arguments)
    _check_place(arguments.output, format)
    _check_options(arguments, format)
    output = arguments.output if format in _TRACKERS else terminal.output_of(arguments)
    columns = terminal.names_in(arguments.columns) if arguments.columns else None
    export = _Export(format, output, columns, arguments.metrics)
    with terminal.open_given(arguments) as store:
        runs, _ = terminal.choose_runs(store, arguments, columns or (), may_be_all=format in _TABLES, lists=False)
        write = (
            functools.partial(_write_anonymous, hide=arguments.hide, keep=arguments.keep)
            if arguments.anonymous
            else _write
        )
        code, what = write(runs, export)
    if format in _TRACKERS:
        print_text(f"exported to {hide_passwords(str(output))}: {what}")
    elif what:
        print_written(output or _STDOUT, what)
    return code


def _place(text: str) -> Path | str:
    return text if "://" in text else Path(text)


def _format_of(arguments: argparse.Namespace) -> str:
    """Return the requested format, or the one of the file's suffix; a ZIP archive by default."""
    suffix = arguments.output.suffix.removeprefix(".").lower() if isinstance(arguments.output, Path) else ""
    return arguments.format or (suffix if suffix in _FORMATS else "zip")


def _check_place(output: Path | str | None, format: str) -> None:
    """Reject a file, folder or URL that the format cannot be written to."""
    if output is None and format in (*_ARCHIVES, "parquet"):
        raise RunsError(f"export: got no file, expected -o FILE.{'zip' if format == 'rocrate' else format}")
    if output is None and format in _TRACKERS:
        raise RunsError(f"export: got no place for {format}, expected -o FOLDER, or for mlflow the address of a server")
    if isinstance(output, str) and format != "mlflow":
        raise RunsError(
            f"export: got the address {hide_passwords(output)}, expected a file; only mlflow takes an address"
        )


def _check_options(arguments: argparse.Namespace, format: str) -> None:
    if format not in _TABLES and (arguments.metrics is not None or arguments.columns):
        raise RunsError("export: a table of --columns or --metrics is csv, json or parquet; add --format csv")
    for option in ("hide", "keep"):
        if getattr(arguments, option) and not arguments.anonymous:
            raise RunsError(f"export: got --{option} without --anonymous, expected both")
    if arguments.anonymous and isinstance(arguments.output, str):
        raise RunsError(
            f"export: got --anonymous and the address {hide_passwords(arguments.output)}, expected a folder, all of "
            "which can be searched"
        )


def _write(runs: Sequence[Run], export: _Export) -> tuple[int, str]:
    if export.format in _TRACKERS:
        return _write_to_tracker(runs, export)
    return _write_archive(runs, export) if export.format in _ARCHIVES else _write_table(runs, export)


def _write_anonymous(runs: Sequence[Run], export: _Export, hide: Sequence[str], keep: Sequence[str]) -> tuple[int, str]:
    from sacristan.runs.transfer.anonymous import UNPROVEN, anonymised

    for sentence in UNPROVEN:
        print_to_stderr(f"note: {sentence}")
    output = Path(export.output or _STDOUT)
    with anonymised(runs, output, hide, keep=keep, overwrite=True) as anonymous:
        columns, metrics = (
            names and [anonymous.name(name) for name in names] for names in (export.columns, export.metrics)
        )
        staged = _Export(export.format, anonymous.output, columns, metrics, is_staged=True)
        code, what = _write(anonymous.runs, staged)
    for word, (replacement, count) in anonymous.replaced.items():
        print_to_stderr(f"replaced {word!r} by {replacement!r}: {count_text(count, 'time')}")
    for what_removed, count in anonymous.removed.items():
        print_to_stderr(f"note: removed {what_removed}: {count_text(count, 'time')}")
    print_left_out(anonymous.left_out)
    if export.output is not None:
        print_to_stderr(f"note: keep {output}.replaced.json to yourself: it lists the replacements")
    return code, "; ".join(filter(None, (what, *_proof(anonymous))))


def _proof(anonymous: AnonymousRuns) -> Iterator[str]:
    """Yield which words were searched for, and which parts were not searched."""
    yield "none of the replaced words is left in what was searched"
    if anonymous.unsearched:
        parts = [f"{part} ({count_text(count, 'file')})" for part, count in anonymous.unsearched.items()]
        yield f"not searched: {', '.join(parts)}"
    if anonymous.common:
        words = ", ".join(map(repr, anonymous.common))
        yield f"removed from fields for users and machines only: {words} (--hide WORD hides it everywhere)"


def _write_to_tracker(runs: Sequence[Run], export: _Export) -> tuple[int, str]:
    from sacristan.runs.transfer.targets import export_to, target_of

    counts: Counter[str] = Counter()
    for sentence in target_of(export.format).LACKS:
        print_to_stderr(f"note: {sentence}")
    for run in export_to(runs, str(export.output), export.format, is_moved=export.is_staged):
        counts[run.outcome] += 1
        counts["partial"] += bool(run.left_out) and run.outcome != "failed"
        counts["points"] += run.num_points
        if run.outcome == "failed":
            print_to_stderr(f"failed: run {run.id}: {run.left_out[0]}")
            continue
        for sentence in run.left_out:
            print_to_stderr(f"note: not exported of run {run.id}: {sentence}")
    parts = [f"{counts[name]} {name}" for name in ("new", "replaced", "present", "failed") if counts[name]]
    partial = f"; {counts['partial']} only in part, see above" if counts["partial"] else ""
    what = f"{', '.join(parts)}; {count_text(counts['points'], 'point')}{partial}"
    return 1 if counts["failed"] else 0, what


def _write_archive(runs: Sequence[Run], export: _Export) -> tuple[int, str]:
    from sacristan.runs.transfer.archives import CRATE_LACKS, check_crate_extra, export_runs

    is_crate = export.format == "rocrate"
    if is_crate:
        check_crate_extra()
        for sentence in CRATE_LACKS:
            print_to_stderr(f"note: {sentence}")
    assert export.output is not None  # `_format_of` asks for it
    done = export_runs(runs, export.output, overwrite=True, is_crate=is_crate)
    print_left_out(done.left_out)
    return 0, f"runs {', '.join(run.id for run in runs)}, {done.num_files} files"


def _write_table(runs: Sequence[Run], export: _Export) -> tuple[int, str]:
    from sacristan.runs.transfer import tables

    tables.check_extra(export.format)
    for sentence in tables.lacks(export.format, export.columns, export.metrics):
        print_to_stderr(f"note: {sentence}")
    rows: Any
    problems: dict[str, str] = {}
    output = None if export.output is None else Path(export.output)
    if export.metrics is not None:
        names, rows = list(tables.METRIC_COLUMNS), tables.metric_rows(runs, export.metrics, problems)
    else:
        names, rows, problems = tables.run_rows(runs, export.columns)
    if export.format == "parquet" and output is not None:
        written = tables.write_parquet(output, names, rows)
    else:
        with contextlib.nullcontext(sys.stdout) if output is None else tables.opened(output) as stream:
            if export.format == "json":
                written = tables.write_json(stream, rows)
            else:
                written = tables.write_csv(stream, names, rows, harmless if output is None and is_terminal() else str)
    print_problems(problems)
    if written.changed:
        print_to_stderr(f"note: changed to fit {export.format}: {list_text(written.changed)}")
    what = f"{count_text(written.num_rows, 'row')}, {count_text(len(names), 'column')}"
    return 0, "" if output is None else what
