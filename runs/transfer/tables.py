"""Runs, or the points of their metrics, as a table in CSV, JSON or Parquet."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import importlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from sacristan.runs.drawing.output_file import writing
from sacristan.runs.errors import StoreAwayError, StoreError, needing_extra
from sacristan.runs.query.texts import cell_text, strict
from sacristan.runs.stores import Run, read_rows

METRIC_COLUMNS = ("id", "uid", "name", "step", "time_s", "value")
_FILES = "files, media, sources, output and notes are in --format zip"
_RUNS = f"a table of runs has settings, results and statistics of metrics: points are in a table of --metrics; {_FILES}"
_POINTS = f"a table of points has no settings and results: they are in a table without --metrics; {_FILES}"
_FORMATS = {
    "csv": "CSV has no types: None is an empty cell, a list or mapping is JSON, and a text that looks like a formula "
    "begins with '",
    "json": 'JSON has no NaN and no infinities: they are the texts "NaN", "Infinity" and "-Infinity"',
    "parquet": "Parquet has one type for each column: lists, mappings, integers beyond 64 bits and values of several "
    "types are text, as JSON",
}


@dataclasses.dataclass(frozen=True)
class WrittenTable:
    """The number of rows, and the columns with a value that the format holds only in another form."""

    num_rows: int
    changed: Sequence[str]


def lacks(format: str, columns: Sequence[str] | None, metrics: Sequence[str] | None) -> list[str]:
    """Return a sentence for each thing that a table of runs, or of points if `metrics` is not None, cannot hold."""
    content = _POINTS if metrics is not None else _RUNS
    return [_FORMATS[format]] if columns else [content, _FORMATS[format]]


def check_extra(format: str) -> None:
    """Check that the package for a format is installed, before any work is done."""
    if format == "parquet":
        with needing_extra("parquet", "parquet"):
            importlib.import_module("pyarrow")


def run_rows(
    runs: Iterable[Run], columns: Sequence[str] | None = None
) -> tuple[list[str], list[dict[str, Any]], dict[str, str]]:
    """Return the columns and rows of a table of runs, and by id why a run cannot be read completely.

    By default, the columns are every entry of the configs, every statistic of the summaries, and the host.
    """
    pairs, problems = read_rows(runs, columns)
    rows = [{"id": run.id, **row} for run, row in pairs]
    return list(dict.fromkeys(name for row in rows for name in row)) or ["id", *(columns or ())], rows, problems


def metric_rows(runs: Iterable[Run], names: Sequence[str], problems: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield values by `METRIC_COLUMNS` for each point; `problems` receives by id why runs cannot be read."""
    for run in runs:
        try:
            for name in run.metrics:
                if not names or name in names:
                    series = run.metric(name)
                    columns = (array.tolist() for array in (series.steps, series.times, series.values))
                    for point in zip(*columns, strict=True):
                        yield dict(zip(METRIC_COLUMNS, (run.id, run.uid, name, *point), strict=True))
        except StoreAwayError:
            raise
        except StoreError as error:
            problems[run.id] = str(error)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open a file for a table as text in UTF-8; it replaces an existing one once it is whole."""
    with writing(path, overwrite=True) as binary:
        text = io.TextIOWrapper(binary, "utf-8", errors="backslashreplace", newline="")
        yield text
        text.flush()
        text.detach()


def write_csv(
    stream: TextIO, columns: Sequence[str], rows: Iterable[dict[str, Any]], clean: Callable[[str], str] = str
) -> WrittenTable:
    """Write a table as CSV that no spreadsheet executes; `clean` cleans texts for a terminal."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([cell_text(clean(name)) for name in columns])
    num_rows, changed = 0, set[str]()
    for row in rows:
        cells = {name: _cell(row.get(name)) for name in columns}
        changed.update(name for name, cell in cells.items() if isinstance(cell, str) and cell != row[name])
        writer.writerow([clean(cell) if isinstance(cell, str) else cell for cell in cells.values()])
        num_rows += 1
    return WrittenTable(num_rows, [name for name in columns if name in changed])


def write_json(stream: TextIO, rows: Iterable[dict[str, Any]]) -> WrittenTable:
    """Write a table as a list in strict JSON, row by row."""
    num_rows, changed = 0, dict[str, None]()
    for row in rows:
        values = strict(row)
        changed |= dict.fromkeys(name for name in row if values.get(name) != row[name])
        stream.write((",\n" if num_rows else "[\n") + json.dumps(values, allow_nan=False))
        num_rows += 1
    stream.write("\n]\n" if num_rows else "[]\n")
    return WrittenTable(num_rows, list(changed))


def write_parquet(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> WrittenTable:
    """Write a table as Parquet; a column with values of several types becomes text, as JSON."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rows)
    table, changed = {}, []
    for name in columns:
        values = [row.get(name) for row in rows]
        convert = _conversion(values)
        table[name] = pa.array([None if value is None else convert(value) for value in values])
        if convert is _text and any(value is not None and _text(value) != value for value in values):
            changed.append(name)
    with writing(path, overwrite=True) as stream:
        pq.write_table(pa.table(table), stream)
    return WrittenTable(len(rows), changed)


def _cell(value: Any) -> Any:
    text = _text(value) if isinstance(value, dict | list) else value
    return cell_text(text) if isinstance(text, str) else text


def _conversion(values: Iterable[Any]) -> Callable[[Any], Any]:
    """Return the type that holds every value of a column, or text if there is none."""
    present = [value for value in values if value is not None]
    types = {type(value) for value in present}
    if types == {int} and all(-(2**63) <= value < 2**63 for value in present):
        return int
    if types <= {bool}:
        return bool
    return float if types <= {int, float} and all(map(_is_float, present)) else _text


def _is_float(value: float) -> bool:
    return isinstance(value, float) or (abs(value) < 2**1023 and float(value) == value)


def _text(value: Any) -> str:
    value = strict(value)
    return value if isinstance(value, str) else json.dumps(value)
