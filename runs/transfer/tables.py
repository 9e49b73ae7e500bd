"""Runs, or the points of their metrics, as a table in CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from runs.drawing.output_file import writing
from runs.errors import StoreAwayError, StoreError, needing_extra
from runs.query.texts import cell_text
from runs.stores.rows import read_rows
from runs.stores.run import Run

__all__ = ["METRIC_COLUMNS", "metric_rows", "run_rows", "write_csv", "write_json", "write_parquet"]

METRIC_COLUMNS = ("id", "uid", "name", "step", "time_s", "value")


def run_rows(
    runs: Iterable[Run], columns: Sequence[str] | None = None
) -> tuple[list[str], list[dict[str, Any]], dict[str, str]]:
    """Return runs as a table.

    Args:
        runs: The runs.
        columns: Fields; by default every entry of the configs, every statistic of the summaries, and the host.

    Returns:
        Names of the columns, a row for each run, and by id why a run cannot be read completely.

    Raises:
        FilterError: If no run of the store has one of the columns.
    """
    pairs, problems = read_rows(runs, columns)
    rows = [{"id": run.id, **row} for run, row in pairs]
    return list(dict.fromkeys(name for row in rows for name in row)) or ["id", *(columns or ())], rows, problems


def metric_rows(runs: Iterable[Run], names: Sequence[str], problems: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each point of the metrics of runs.

    Args:
        runs: The runs.
        names: The metrics; all metrics if empty.
        problems: Receives by id why a run cannot be read completely.

    Yields:
        Values by `METRIC_COLUMNS`.
    """
    for run in runs:
        try:
            for name in run.metrics:
                if not names or name in names:
                    yield from _points(run, name)
        except StoreAwayError:
            raise
        except StoreError as error:
            problems[run.id] = str(error)


def _points(run: Run, name: str) -> Iterator[dict[str, Any]]:
    series = run.metric(name)
    for step, time, value in zip(*(a.tolist() for a in (series.steps, series.times, series.values)), strict=True):
        yield dict(zip(METRIC_COLUMNS, (run.id, run.uid, name, step, time, value), strict=True))


def write_csv(
    stream: TextIO, columns: Sequence[str], rows: Iterable[dict[str, Any]], clean: Callable[[str], str] = str
) -> None:
    """Write a table as CSV that no spreadsheet executes; see `cell_text`.

    Args:
        stream: The stream to write to.
        columns: Names of the columns.
        rows: Values by column. A missing value is an empty cell; lists and mappings become JSON.
        clean: Cleans texts for a terminal.
    """
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([cell_text(clean(name)) for name in columns])
    for row in rows:
        values = [_as_text(row.get(name)) for name in columns]
        writer.writerow([cell_text(clean(value)) if isinstance(value, str) else value for value in values])


def write_json(stream: TextIO, rows: Iterable[dict[str, Any]], strict: Callable[[Any], Any]) -> None:
    """Write a table as a JSON list, row by row.

    Args:
        stream: The stream to write to.
        rows: Values by column.
        strict: Returns a row as strict JSON can hold it.
    """
    start = "[\n"
    for row in rows:
        stream.write(start + json.dumps(strict(row), allow_nan=False))
        start = ",\n"
    stream.write("[]\n" if start == "[\n" else "\n]\n")


def write_parquet(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write a table as Parquet; a column with values of several types becomes text, as JSON.

    Args:
        path: The file, which is replaced.
        columns: Names of the columns.
        rows: Values by column.

    Raises:
        MissingExtraError: If the package for it is missing.
        StoreError: If the file cannot be written.
    """
    with needing_extra("parquet", "parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    import pandas

    frame = pandas.DataFrame(list(rows), columns=list(columns))
    table = pa.table({name: pa.array(_column(frame[name].tolist())) for name in columns})
    with writing(path, overwrite=True) as stream:
        pq.write_table(table, stream)


def _as_text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _column(values: list[Any]) -> list[Any]:
    """Return the values of a column converted to one type."""
    types = {type(value) for value in values if value is not None}
    if types <= {str} or types <= {bool} or (types == {int} and all(map(_fits, values))):
        return values
    convert: Callable[[Any], Any] = float if types <= {int, float} else _text
    return [None if value is None else convert(value) for value in values]


def _fits(value: int | None) -> bool:
    return value is None or -(2**63) <= value < 2**63


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
