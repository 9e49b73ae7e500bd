"""Runs as tables of metrics: CSV and JSON-lines files, among them those of Lightning's CSVLogger.

Each file is a run. A column is a metric, a row a step; empty cells are no points. Config is read from `hparams.yaml`,
`config.yaml` or `config.json` beside the file. Such files hold no times, unless a column does.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import yaml

from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.other_trackers import parse_value
from sacristan.runs.errors import ForeignError
from sacristan.runs.transfer.trackers.foreign_run import Curve, ForeignRun, Found, as_steps, flat
from sacristan.runs.transfer.trackers.source_files import is_inside

KIND = "csv"
_SUFFIXES = (".csv", ".tsv", ".jsonl")
# The columns that hold the step, the most telling one first, and the time in seconds since 1970.
STEPS = ("step", "global_step", "_step", "iteration", "iter", "epoch")
TIMES = ("timestamp", "_timestamp", "wall_time", "time")
_CONFIGS = ("hparams.yaml", "config.yaml", "config.json")


class _Column(NamedTuple):
    """The cells of a column that are not empty: their values, and the numbers of their rows."""

    rows: list[int]
    values: list[Any]

    def numbers(self) -> _Column:
        if {*map(type, self.values)} <= {int, float, bool}:
            return self
        pairs = zip(self.rows, self.values, strict=True)
        kept = [(row, value) for row, value in pairs if isinstance(value, int | float)]
        return _Column([row for row, _ in kept], [value for _, value in kept])


def recognizes(path: Path) -> bool:
    """Tell whether this is such a file, or a folder with one."""
    return next(_files(path), None) is not None


def find(path: Path) -> Iterator[Found]:
    """Yield a run for each file, in the order of their paths."""
    for file in _files(path):
        yield Found(str(file.resolve()), str(file), partial(_read, path, file), by_place=True)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        if path.suffix in _SUFFIXES:
            yield path
        return
    for where, folders, names in os.walk(path):
        folders.sort()
        files = (Path(where, name) for name in sorted(names) if Path(name).suffix in _SUFFIXES)
        yield from (file for file in files if is_inside(path, file))


def _read(root: Path, path: Path) -> ForeignRun:
    is_below = root in path.parents
    title = path.relative_to(root).with_suffix("").as_posix() if is_below else path.stem
    run = ForeignRun(experiment=(root if is_below else path.parent).resolve().name, title=title)
    columns, num_rows = (_json_columns if path.suffix == ".jsonl" else _table_columns)(path, run.left_out)
    if not num_rows:
        raise ForeignError("it has no rows")
    run.stopped = path.stat().st_mtime
    steps = _take_steps(columns, num_rows)
    times = _take_times(columns, num_rows)
    for name, column in columns.items():
        numbers = column.numbers()
        if num_others := sum(value is not None for value in column.values) - len(numbers.rows):
            run.left_out.append(f"{num_others} cells of {name!r} are no numbers")
        if numbers.rows:
            floats = np.array(numbers.values, np.float64)
            run.curves.append(Curve(name, as_steps(steps[numbers.rows]), floats, times[numbers.rows]))
    run.config = _config_beside(path, run.left_out)
    return run


def _take_steps(columns: dict[str, _Column], num_rows: int) -> np.ndarray:
    """Remove the column of steps, and return the step of each row; its number where a row has none."""
    step_name = next((name for name in STEPS if name in columns), None)
    rows, values = columns.pop(step_name).numbers() if step_name else _Column([], [])
    if len(rows) == num_rows:
        return as_steps(values)
    step_by_row = dict(zip(rows, values, strict=True))
    return as_steps([step_by_row.get(row, row) for row in range(num_rows)])


def _take_times(columns: dict[str, _Column], num_rows: int) -> np.ndarray:
    """Remove the column of times, and return the time of each row; NaN where a row has none."""
    times = np.full(num_rows, np.nan)
    time_name = next((name for name in TIMES if name in columns and any(map(_is_epoch, columns[name].values))), None)
    if time_name is not None:
        for row, value in zip(*columns.pop(time_name), strict=True):
            times[row] = value if _is_epoch(value) else np.nan
    return times


def _is_epoch(value: Any) -> TypeGuard[float]:
    """Tell whether a number is a time in seconds since 1970: neither milliseconds, nor seconds since a start."""
    return isinstance(value, int | float) and 1e8 < value < 1e11


def table_rows(path: Path, left_out: list[str]) -> list[dict[str, Any]]:
    """Return the rows of a CSV or TSV file; empty cells are None, and `left_out` gets a sentence for each bad line."""
    names, lines = _table(path, left_out)
    return [
        {name: parse_value(cell) if cell.strip() else None for name, cell in zip(names, cells, strict=True) if name}
        for cells in lines
    ]


def _table_columns(path: Path, left_out: list[str]) -> tuple[dict[str, _Column], int]:
    names, lines = _table(path, left_out)
    columns = {}
    for number, name in enumerate(names if lines else ()):
        cells = [line[number] for line in lines]  # zip would make an iterator for each line
        column = _Column([*range(len(lines))], numbers) if (numbers := _numbers(cells)) else _parsed(cells)
        if name and column.rows:
            columns[name] = column
    return columns, len(lines)


def _numbers(cells: Sequence[str]) -> list[Any]:
    """Return the values of cells that are all integers or all numbers; nothing if there are others or gaps."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return list(map(kind, cells))
    return []


def _parsed(cells: Sequence[str]) -> _Column:
    rows = [row for row, cell in enumerate(cells) if cell and not cell.isspace()]
    filled = [cells[row] for row in rows]
    return _Column(rows, _numbers(filled) or [*map(parse_value, filled)])


def _table(path: Path, left_out: list[str]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns, and the cells of each whole line."""
    text = _text(path)
    if not text.strip():
        return [], []
    reader = csv.reader(io.StringIO(text), delimiter="\t" if path.suffix == ".tsv" else ",")
    try:
        head, *body = reader
    except csv.Error as error:
        raise ForeignError(f"it is no table of text ({error})") from error
    names = [name.strip() for name in head]
    if len(set(names)) < len(names):
        raise ForeignError(f"its first line names a column twice: {', '.join(names[:12])}")
    last = len(body) + 1
    if body and len(body[-1]) == len(names) and not text.endswith(("\n", "\r")):
        del body[-1]
        left_out.append(f"line {last}, the last one, has no end: its last number may be cut off")
    return names, _whole_lines(body, len(names), left_out)


def _whole_lines(body: list[list[str]], num_columns: int, left_out: list[str]) -> list[list[str]]:
    if {*map(len, body)} <= {num_columns}:
        return body
    for number, cells in enumerate(body, 2):
        if cells and len(cells) != num_columns:
            left_out.append(f"line {number} has {len(cells)} cells instead of {num_columns}")
    return [cells for cells in body if len(cells) == num_columns]


def _json_columns(path: Path, left_out: list[str]) -> tuple[dict[str, _Column], int]:
    columns: dict[str, _Column] = {}
    num_rows = 0
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except ValueError:
            left_out.append(f"line {number} is no JSON")
            continue
        if not isinstance(row, dict):
            left_out.append(f"line {number} is no JSON object")
            continue
        for name, value in flat(row, has_media=False):
            column = columns.setdefault(name, _Column([], []))
            column.rows.append(num_rows)
            column.values.append(value)
        num_rows += 1
    return columns, num_rows


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ForeignError(f"it is no text in UTF-8 ({error})") from error


def _config_beside(path: Path, left_out: list[str]) -> dict[str, Any]:
    for name in _CONFIGS:
        try:
            text = (path.parent / name).read_text()
            content = parse_json(text.encode()) if name.endswith(".json") else yaml.safe_load(text)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, yaml.YAMLError) as error:
            left_out.append(f"{name}: {' '.join(str(error).split())}")
            continue
        if isinstance(content, dict):
            return content
    return {}
