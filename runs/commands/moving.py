"""`export`, `import`, `copy`: runs that go from one place to another."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from runs.commands.arguments import Commands, add_command, add_json, open_given, where_of
from runs.commands.keeping import add_runs, size_text
from runs.commands.listing import add_selection, selection_of
from runs.commands.terminal import Progress, harmless, is_terminal, print_json, print_text, strict

if TYPE_CHECKING:
    from runs.stores.run import Run
    from runs.stores.store import Store
    from runs.transfer.copying import Copied

__all__ = ["add_parser"]

_FORMATS = ("zip", "csv", "json", "parquet")


def add_parser(commands: Commands) -> None:
    """Add the commands."""
    export = add_command(
        commands, "export", "write whole runs into one archive, or a table of runs or metrics", _export
    )
    add_runs(export)
    export._actions[-1].nargs = "*"
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to; tables go to stdout without it")
    help = "zip for whole runs, csv, json or parquet for a table (by the file's suffix)"
    export.add_argument("--format", choices=_FORMATS, help=help)
    add_selection(export)
    export.add_argument("--columns", metavar="A,B,...", help="fields in the table (all of config and summary)")
    help = "a table of the points of these metrics, or of all"
    export.add_argument("--metrics", nargs="*", metavar="NAME", help=help)
    export.add_argument("--force", action="store_true", help="replace FILE if it is there")

    import_ = add_command(commands, "import", "take the runs of an archive in", _import)
    import_.add_argument("file", type=Path, metavar="FILE", help="an archive that export made")
    help = "how much it may unpack to (a hundred times its length, at least 1 GB)"
    import_.add_argument("--max-bytes", type=int, metavar="N", help=help)
    add_json(import_)

    copy = add_command(commands, "copy", "copy runs into another folder or database, with all that they hold", _copy)
    add_runs(copy)
    copy.add_argument("--to", required=True, metavar="WHERE", help="folder of runs, or mongodb:// URL")
    add_json(copy)


def _export(arguments: argparse.Namespace) -> int:
    from runs.errors import RunsError

    output = arguments.output
    suffix = output.suffix.removeprefix(".").lower() if output else ""
    format = arguments.format or (suffix if suffix in _FORMATS else "zip")
    if output is None and format in ("zip", "parquet"):
        raise RunsError(f"export: got no file, expected -o FILE.{format}")
    if format == "zip" and (arguments.metrics is not None or arguments.columns):
        raise RunsError("export: a table of --columns or --metrics is csv, json or parquet; say --format csv")
    if output is not None and output.exists() and not arguments.force:
        raise RunsError(f"{output} is there already; choose another name, or say --force")
    with open_given(arguments) as store:
        columns = [name.strip() for name in arguments.columns.split(",")] if arguments.columns else None
        chosen = _chosen(arguments, store, columns)
        if format == "zip":
            return _export_archive(chosen, output)
        _export_table(chosen, columns, arguments.metrics, format, output)
    return 0


def _chosen(arguments: argparse.Namespace, store: Store, columns: Sequence[str] | None) -> list[Run]:
    from runs.errors import RunsError

    if arguments.runs:
        if arguments.where or arguments.tag:
            raise RunsError("export: got ids and conditions, expected one of them")
        return [store.get(key) for key in arguments.runs]
    found = selection_of(arguments, columns or ()).find(store)
    if not found:
        raise RunsError("export: no run meets the conditions")
    if arguments.format in (None, "zip") and not (arguments.where or arguments.tag) and columns is None:
        suffix = arguments.output.suffix.lower() if arguments.output else ""
        if suffix not in (".csv", ".json", ".parquet"):
            raise RunsError("export: got no run, expected ids, or conditions such as --where 'lr<1e-3'")
    return found


def _export_archive(chosen: Sequence[Run], output: Path) -> int:
    from runs.transfer.archives import export_runs

    done = export_runs(chosen, output, overwrite=True)
    print_text(
        f"{output}: runs {', '.join(run.id for run in chosen)}, {done.num_files} files, {size_text(done.num_bytes)}"
    )
    _say_left_out(done.left_out)
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
    if metrics is not None:
        names, rows = list(tables.METRIC_COLUMNS), tables.metric_rows(chosen, metrics)
    else:
        names, rows = tables.run_rows(chosen, columns)
    if format == "parquet":
        tables.write_parquet(output, names, rows)
        return
    with _opened(output) as stream:
        if format == "json":
            tables.write_json(stream, rows, strict)
        else:
            tables.write_csv(stream, names, rows, harmless if output is None and is_terminal() else str)


@contextlib.contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    import io

    from observers.record.atomic_file import replacing
    from runs.errors import StoreError

    if output is None:
        yield sys.stdout
        return
    try:
        with replacing(output) as binary:
            text = io.TextIOWrapper(binary, "utf-8", errors="backslashreplace", newline="")
            yield text
            text.flush()
            text.detach()
    except OSError as error:
        raise StoreError(f"{output} cannot be written ({error.strerror or error})") from error


def _import(arguments: argparse.Namespace) -> int:
    from runs.transfer.archives import import_runs
    from runs.transfer.copying import open_target

    with open_target(where_of(arguments)) as store:
        store.on_progress = Progress()
        _print_copied(import_runs(arguments.file, store, arguments.max_bytes), None, in_json=arguments.json)
    return 0


def _copy(arguments: argparse.Namespace) -> int:
    from runs.transfer.copying import copy, open_target

    with open_given(arguments) as store:
        chosen = [store.get(key) for key in arguments.runs]
        with open_target(arguments.to) as target:
            target.on_progress = Progress()
            copied = [copy(run, target) for run in chosen]
            _print_copied(copied, [run.id for run in chosen], in_json=arguments.json)
    return 0


def _print_copied(copied: Sequence[Copied], ids: Sequence[str] | None, *, in_json: bool) -> None:
    if in_json:
        rows = [{"id": c.run.id, "uid": c.run.uid, "is_new": c.is_new, "left_out": list(c.left_out)} for c in copied]
        print_json([{**row, **({"from": id} if ids else {})} for row, id in zip(rows, ids or rows, strict=True)])
        return
    for number, one in enumerate(copied):
        before = f"run {ids[number]}" if ids else str(one.run.uid)
        if one.is_new:
            print_text(f"{before} is run {one.run.id} of {one.run.store.where}")
        else:
            print_text(f"{before} is in {one.run.store.where} already, as run {one.run.id}; nothing is changed")
        _say_left_out(one.left_out)


def _say_left_out(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        print(f"note: not taken over: {harmless(sentence)}", file=sys.stderr)
