"""Runs as tables of metrics: CSV and JSON-lines files, among them those of Lightning's CSVLogger.

Each file is a run. A column is a metric, a row a step; empty cells are no points. Config is read from `hparams.yaml`,
`config.yaml` or `config.json` beside the file. Such files hold no times, unless a column does.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import yaml

from observers.record.json_text import parse_json
from runs.errors import ForeignError
from runs.transfer.trackers.foreign_run import Curve, ForeignRun, Found, as_steps, parse_value
from runs.transfer.trackers.source_files import is_inside

__all__ = ["KIND", "find", "recognizes"]

KIND = "csv"
_SUFFIXES = (".csv", ".tsv", ".jsonl")
# The columns that hold the step, the most telling one first, and the time in seconds since 1970.
STEPS = ("step", "global_step", "_step", "iteration", "iter", "epoch")
TIMES = ("timestamp", "_timestamp", "wall_time", "time")
_CONFIGS = ("hparams.yaml", "config.yaml", "config.json")


def recognizes(path: Path) -> bool:
    """Tell whether this is such a file, or a folder with one."""
    return next(_files(path), None) is not None


def find(path: Path) -> Iterator[Found]:
    """Yield a run for each file, in the order of their paths."""
    for file in _files(path):
        yield Found(str(file.resolve()), str(file), lambda file=file: _read(path, file))  # type: ignore[misc]


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
    rows = _json_rows(path, run.left_out) if path.suffix == ".jsonl" else table_rows(path, run.left_out)
    if not rows:
        raise ForeignError("it has no rows")
    run.stopped = path.stat().st_mtime
    step_column = next((name for name in STEPS if any(name in row for row in rows)), None)
    time_column = next((name for name in TIMES if any(_is_epoch(row.get(name)) for row in rows)), None)
    _take_points(run, rows, step_column, time_column)
    run.config = _config_beside(path, run.left_out)
    return run


def _take_points(run: ForeignRun, rows: list[dict[str, Any]], step_column: str | None, time_column: str | None) -> None:
    points: dict[str, list[tuple[Any, float, float]]] = {}
    texts: dict[str, int] = {}
    for number, row in enumerate(rows):
        step = number if step_column is None else row.get(step_column, number)
        step = step if isinstance(step, int | float) else number
        time_s = row.get(time_column) if time_column else None
        for name, value in row.items():
            if name in (step_column, time_column) or value is None:
                continue
            if isinstance(value, int | float):
                at = float(time_s) if _is_epoch(time_s) else np.nan
                points.setdefault(name, []).append((step, float(value), at))
            else:
                texts[name] = texts.get(name, 0) + 1
    for name, triples in points.items():
        steps, values, times = zip(*triples, strict=True)
        run.curves.append(Curve(name, as_steps(steps), np.array(values), np.array(times)))
    run.left_out += [f"{count} cells of {name!r} are no numbers" for name, count in texts.items()]


def _is_epoch(value: Any) -> TypeGuard[float]:
    """Tell whether a number is a time in seconds since 1970: neither milliseconds, nor seconds since a start."""
    return isinstance(value, int | float) and 1e8 < value < 1e11


def table_rows(path: Path, left_out: list[str]) -> list[dict[str, Any]]:
    text = _text(path)
    if not text.strip():
        return []
    reader = csv.reader(io.StringIO(text), delimiter="\t" if path.suffix == ".tsv" else ",")
    try:
        lines = list(reader)
    except csv.Error as error:
        raise ForeignError(f"it is no table of text ({error})") from error
    head, *body = lines
    names = [name.strip() for name in head]
    if len(set(names)) < len(names):
        raise ForeignError(f"its first line names a column twice: {', '.join(names[:12])}")
    rows = []
    for number, cells in enumerate(body, 2):
        is_last = number == len(body) + 1 and not text.endswith(("\n", "\r"))
        if len(cells) != len(names):
            if cells:
                left_out.append(f"line {number} has {len(cells)} cells instead of {len(names)}")
        elif is_last:
            left_out.append(f"line {number}, the last one, has no end: its last number may be cut off")
        else:
            rows.append({name: _cell(cell) for name, cell in zip(names, cells, strict=True) if name})
    return rows


def _cell(text: str) -> Any:
    return None if not text.strip() else parse_value(text)


def _json_rows(path: Path, left_out: list[str]) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except ValueError:
            left_out.append(f"line {number} is no JSON")
            continue
        if isinstance(row, dict):
            rows.append(dict(_flat(row)))
        else:
            left_out.append(f"line {number} is no JSON object")
    return rows


def _flat(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


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
