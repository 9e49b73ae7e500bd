"""Runs of Neptune, as `neptune-exporter` downloads them: Parquet files with a row for each value, and files beside.

The extra `parquet` reads them. A run lies in parts, `<run>_part_<n>.parquet`, in the folder of its project; part 0
comes last: without it, the export was interrupted. Neptune tells which runs failed, and not how the others ended.

Source: https://github.com/neptune-ai/neptune-exporter (README.md, Parquet schema)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.observers.media.kinds import Text
from sacristan.observers.record.media_files import Content, MediaEntry
from sacristan.runs.errors import ForeignError, needing_extra
from sacristan.runs.transfer.trackers.foreign_run import (
    Curve,
    ForeignRun,
    Found,
    as_steps,
    file_content,
    histogram_content,
)
from sacristan.runs.transfer.trackers.source_files import file_inside, files_below

KIND = "neptune"
# The exporter appends a digest of 8 bytes to the names of projects and runs.
_FILE = re.compile(r"(?P<run>.+-[0-9a-f]{16})_part_(?P<part>\d{1,9})\.parquet")
_STEP_DIGITS = 6  # decimals
# Namespaces that Neptune fills on its own.
_OWN = ("sys", "monitoring", "source_code", "runtime")
_SERIES = ("string_series", "histogram_series", "file_series")
_FILES = ("file", "file_set", "artifact")
_VALUES = {kind: f"{kind}_value" for kind in ("int", "float", "string", "bool", "datetime", "string_set")}


def recognizes(path: Path) -> bool:
    """Tell whether these are such files, by their names."""
    return next(_parts(path), None) is not None


def find(path: Path) -> Iterator[Found]:
    """Yield each run, in the order of their names."""
    runs: dict[str, dict[int, Path]] = {}
    for file in _parts(path):
        match = _FILE.fullmatch(file.name)
        if match:
            key = f"{file.resolve().parent.name}/{match['run']}"
            runs.setdefault(key, {})[int(match["part"])] = file
    for key, files in sorted(runs.items()):
        source = f"{next(iter(files.values())).parent}, run {key.partition('/')[2]}"
        yield Found(key, source, partial(_read, files))


def _parts(path: Path) -> Iterator[Path]:
    """Yield the parts of all runs; of a single file, the parts of its run."""
    if path.is_file():
        if match := _FILE.fullmatch(path.name):
            beside = [each for each in sorted(path.parent.iterdir()) if each.name.startswith(f"{match['run']}_part_")]
            yield from (each for each in beside if _FILE.fullmatch(each.name) and _is_regular(each))
        return
    for where, folders, names in os.walk(path):
        folders.sort()
        files = [Path(where, name) for name in sorted(names) if _FILE.fullmatch(name)]
        yield from filter(_is_regular, files)


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _read(files: dict[int, Path]) -> ForeignRun:
    with needing_extra("parquet", "importing runs of Neptune"):
        import pyarrow.parquet as parquet
    reading = _RunReader(next(iter(files.values())).parent)
    run = reading.run
    missing = sorted(set(range(max(files))) - set(files))
    run.left_out += [f"part {part} is missing: the export of the run was interrupted" for part in missing]
    for _, path in sorted(files.items()):
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches():
                    reading.take(batch)
        except (OSError, ValueError, KeyError, TypeError) as error:  # pyarrow's own are among them
            run.left_out.append(f"{path.name}: it cannot be read ({' '.join(str(error).split())})")
    return reading.finish()


class _RunReader:
    """Reads the parts of one run, in the folder of its project."""

    def __init__(self, folder: Path) -> None:
        self.run = ForeignRun(experiment="")
        # The exporter's defaults are `exports/data` and `exports/files`; both may be one folder.
        self._roots = [each / folder.name for each in (folder.parent.parent / "files", folder.parent)]
        self._pieces: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        self._output: list[tuple[float, str]] = []
        self._own: dict[str, Any] = {}
        self._num_rows = 0

    def take(self, batch: Any) -> None:
        """Take a `pyarrow.RecordBatch`; a missing column is a KeyError, one of another type a ValueError."""
        import pyarrow.compute as compute

        self._num_rows += len(batch)
        if not self.run.experiment and len(batch):
            self.run.title = batch.column("run_id")[0].as_py()
            workspace, _, self.run.experiment = batch.column("project_id")[0].as_py().rpartition("/")
            names = {"workspace": workspace, "project": self.run.experiment, "run": self.run.title}
            self.run.info["neptune"] = names
        is_point = compute.equal(batch.column("attribute_type"), "float_series")
        self._take_points(batch.filter(is_point))
        for row in batch.filter(compute.invert(is_point)).to_pylist():
            self._take_row(row)

    def _take_points(self, batch: Any) -> None:
        steps, times = _steps(batch.column("step")), _times(batch.column("timestamp"))
        # The exporter turns NaN into null.
        values = batch.column("float_value").fill_null(np.nan).to_numpy(zero_copy_only=False)
        encoded = batch.column("attribute_path").dictionary_encode()
        codes = encoded.indices.to_numpy()
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            at = codes == code
            self._pieces.setdefault(name, []).append((steps[at], values[at], times[at]))

    def _take_row(self, row: dict[str, Any]) -> None:
        name, kind = row["attribute_path"], row["attribute_type"]
        if kind in _VALUES:
            self._take_value(name, row[_VALUES[kind]])
        elif kind in _FILES:
            self._take_file(name, row)
        elif kind == "string_series" and name.endswith(("/stdout", "/stderr")):
            self._output.append((_time(row), str(row["string_value"])))
        elif kind in _SERIES:
            self._take_medium(name, kind, row)
        else:
            self.run.left_out.append(f"{name!r}: of the unknown type {kind}")

    def _take_value(self, name: str, value: Any) -> None:
        value = value.isoformat() if isinstance(value, datetime) else value
        if value is None:
            return
        parts = name.split("/")
        into = self._own if parts[0] in _OWN else self.run.config
        for depth, part in enumerate(parts[:-1]):
            inner = into.setdefault(part, {})
            if not isinstance(inner, dict):  # a value and a namespace of one name
                parts = [*parts[:depth], "/".join(parts[depth:])]
                break
            into = inner
        into[parts[-1]] = value

    def _take_medium(self, name: str, kind: str, row: dict[str, Any]) -> None:
        step = row["step"]
        step = 0 if step is None else int(step) if step == int(step) else float(step)
        try:
            medium, content = self._content(kind, row)
        except ValueError:
            if kind == "file_series":
                self._take_file(f"{name}/{step}", row)
            else:
                self.run.left_out.append(f"{name!r} of step {step}: a {kind} without a value")
        else:
            self.run.media.append(MediaEntry(name, medium, step, _time(row), content))

    def _content(self, kind: str, row: dict[str, Any]) -> tuple[str, Content]:
        if kind == "string_series" and row["string_value"] is not None:
            return "text", Text(row["string_value"]).encode()
        if kind == "histogram_series" and row["histogram_value"]:
            return "histogram", histogram_content(row["histogram_value"]["values"], row["histogram_value"]["edges"])
        path = self._path(row)
        if path is None or path.is_dir():
            raise ValueError("there is no such file")
        return file_content(path)

    def _path(self, row: dict[str, Any]) -> Path | None:
        """Return where a file was downloaded to; None if it is not there."""
        name = str((row["file_value"] or {}).get("path"))
        paths = (file_inside(root, name) for root in self._roots)
        return next((path for path in paths if path.is_file() or path.is_dir()), None)

    def _take_file(self, name: str, row: dict[str, Any]) -> None:
        try:
            path = self._path(row)
        except ValueError as error:
            self.run.left_out.append(f"file {name!r}: {error}")
            return
        if path is None:
            self.run.left_out.append(f"file {name!r}: expected in {self._roots[0]}, which has no such file")
        elif path.is_dir():
            self.run.artifacts |= {f"{name}/{inner}": each for inner, each in files_below(path, self.run.left_out)}
        else:
            self.run.artifacts[name if name.endswith(path.suffix) else name + path.suffix] = path

    def finish(self) -> ForeignRun:
        run = self.run
        if not self._num_rows:
            raise ForeignError("; ".join(run.left_out) or "its files have no rows")
        for name, pieces in self._pieces.items():
            steps, values, times = (np.concatenate(each) for each in zip(*pieces, strict=True))
            run.curves.append(Curve(name, as_steps(steps.tolist()), values, times))
        run.output = "\n".join(text.rstrip("\n") for _, text in sorted(self._output, key=lambda line: line[0])).encode()
        self._take_system(dict(self._own.pop("sys", {})))
        run.info["neptune"] |= self._own
        return run

    def _take_system(self, system: dict[str, Any]) -> None:
        run = self.run
        run.title = str(system.pop("name", "") or system.get("custom_run_id") or run.title)
        run.note = str(system.pop("description", ""))
        run.tags = [*system.pop("tags", ()), *system.pop("group_tags", ())]
        run.host = {here: system.pop(there) for here, there in (("hostname", "hostname"), ("user", "owner"))
                    if there in system}  # fmt: skip
        run.status = "FAILED" if system.get("failed") is True else run.status
        run.started = _seconds(system.get("creation_time"))
        times = [float(np.nanmax(curve.times)) for curve in run.curves if not np.isnan(curve.times).all()]
        run.stopped = _seconds(system.get("ping_time")) or max(times, default=run.started)
        run.info["neptune"]["sys"] = system


def _steps(column: Any) -> np.ndarray:
    """Return decimals as float64, rounded once."""
    import pyarrow as pa

    column = column.cast(pa.decimal128(18, _STEP_DIGITS)).fill_null(0)
    halves = np.frombuffer(column.buffers()[1], np.int64) if len(column) else np.zeros(0, np.int64)
    return halves[2 * column.offset : 2 * (column.offset + len(column)) : 2] / 10**_STEP_DIGITS


def _times(column: Any) -> np.ndarray:
    import pyarrow as pa

    milliseconds = column.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).cast(pa.float64())
    return milliseconds.fill_null(np.nan).to_numpy(zero_copy_only=False) / 1000


def _time(row: dict[str, Any]) -> float:
    return np.nan if row["timestamp"] is None else row["timestamp"].timestamp()


def _seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
