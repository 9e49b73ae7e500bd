"""Folders of DVCLive: a table for each metric in `plots/metrics`, images, parameters, and a summary.

DVCLive overwrites its folder in the next run, and does not record how a run ended. Tables have times only if the metric
was logged with `timestamp=True`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import yaml

from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.media_files import MediaEntry
from sacristan.runs.errors import ForeignError
from sacristan.runs.transfer.trackers.csv_files import table_rows
from sacristan.runs.transfer.trackers.foreign_run import ForeignRun, Found, Points, file_content, flat
from sacristan.runs.transfer.trackers.source_files import files_below

KIND = "dvclive"
_METRICS, _IMAGES = "plots/metrics/", "plots/images/"
_SUMMARY, _PARAMETERS = "metrics.json", "params.yaml"


def recognizes(path: Path) -> bool:
    """Tell whether this is a folder of DVCLive, or contains one."""
    return next(_folders(path), None) is not None


def find(path: Path) -> Iterator[Found]:
    """Yield each folder, in the order of their paths."""
    for folder in _folders(path):
        yield Found(str(folder.resolve()), str(folder), partial(_read, path, folder), by_place=True)


def _folders(path: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(path):
        folders.sort()
        if Path(where, _METRICS).is_dir() or {_SUMMARY, _PARAMETERS} <= set(names):
            folders.clear()
            yield Path(where)


def _read(root: Path, folder: Path) -> ForeignRun:
    is_below = root in folder.parents
    run = ForeignRun(
        experiment=(root if is_below else folder.parent).resolve().name,
        title=folder.relative_to(root).as_posix() if is_below else folder.resolve().name,
    )
    return _RunReader(run, folder).read()


class _RunReader:
    def __init__(self, run: ForeignRun, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.points = Points()
        self.changed: list[float] = []  # when tables were last written

    def read(self) -> ForeignRun:
        run = self.run
        run.config = _entries(run, self.folder / _PARAMETERS, yaml.safe_load)
        summary = _entries(run, self.folder / _SUMMARY, parse_json)
        for name, path in files_below(self.folder, run.left_out):
            self._take_file(name, path, summary.get("step"))
        run.curves = self.points.curves()
        names = {curve.name for curve in run.curves}
        run.info["summary"] = {name: value for name, value in flat(summary, has_media=False) if name not in names}
        if not (names or run.config or summary or run.media):
            raise ForeignError("none of its files can be read")
        times = [curve.times.max() for curve in run.curves if not np.isnan(curve.times).any()]
        run.stopped = max(times or self.changed, default=None)
        return run

    def _take_file(self, name: str, path: Path, last_step: Any) -> None:
        if name.startswith(_METRICS) and path.suffix in (".tsv", ".csv"):
            self._take_metric(name.removeprefix(_METRICS), path)
        elif name.startswith(_IMAGES) and path.suffix == ".png":
            self._take_image(PurePosixPath(name.removeprefix(_IMAGES)), path, last_step)
        elif name not in (_SUMMARY, _PARAMETERS):
            self.run.artifacts[name] = path

    def _take_metric(self, name: str, path: Path) -> None:
        """Take a table with step, value and, if the metric was logged with it, time in milliseconds."""
        left_out: list[str] = []
        try:
            rows = table_rows(path, left_out)
            self.changed.append(path.stat().st_mtime)
        except (ForeignError, OSError) as error:
            left_out.append(str(error))
            rows = []
        metric = str(PurePosixPath(name).with_suffix(""))
        if not (rows or left_out):
            left_out.append("it has no rows")
        num_others = 0
        for number, row in enumerate(rows):
            *others, column = row
            if isinstance(row[column], int | float):
                step, at = (row.get(other) if other in others else None for other in ("step", "timestamp"))
                at = _number(at, np.nan) / 1000
                self.points.add(metric, _number(step, number), float(row[column]), at, origin=name)
            else:
                num_others += row[column] is not None
        if num_others:
            left_out.append(f"{num_others} values are no numbers")
        self.run.left_out += [f"metric {metric!r}: {sentence}" for sentence in left_out]

    def _take_image(self, image: PurePosixPath, path: Path, last_step: Any) -> None:
        """Take an image; one that is in a folder and named by a number belongs to the folder's series."""
        is_of_series = image.stem.isdecimal() and len(image.parts) > 1 and len(image.stem) < 19
        name, step = (image.parent, int(image.stem)) if is_of_series else (image, _number(last_step, 0))
        try:
            kind, content = file_content(path)
        except (ValueError, OSError) as error:
            self.run.left_out.append(f"image {str(image)!r}: {error}")
        else:
            self.run.media.append(MediaEntry(str(name), kind, step, np.nan, content))


def _number(value: Any, default: float) -> Any:
    return value if isinstance(value, int | float) else default


def _entries(run: ForeignRun, path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """Return the content of a file of entries; nothing if there is none."""
    if path.is_symlink() or not path.is_file():
        return {}
    try:
        content = parse(path.read_text("utf-8"))
        if isinstance(content, dict):
            return content
        reason = f"got {type(content).__name__}, expected entries"
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
    run.left_out.append(f"{path.name}: {reason}")
    return {}
