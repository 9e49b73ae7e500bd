"""Output folders of Hydra's runs and multiruns: config and overrides from `.hydra`, points from other files beside.

Hydra records no metrics. Those of DVCLive, of event files, and of tables such as Lightning's `metrics.csv` in the
folder belong to the run. Hydra does not record how a run ended; pickled results of callbacks are not opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sacristan.observers.record.files import read_regular
from sacristan.runs.errors import ForeignError
from sacristan.runs.query import mapping_of
from sacristan.runs.transfer.trackers import csv_files, dvclive_folders, event_files
from sacristan.runs.transfer.trackers.foreign_run import UNKNOWN, Curve, ForeignRun, Found, as_json
from sacristan.runs.transfer.trackers.source_files import file_inside

KIND = "hydra"
_FOLDER = ".hydra"
_FILES = ("config.yaml", "hydra.yaml", "overrides.yaml")
_REFERENCE = re.compile(r"\$\{(\.*)([\w-]+(?:\.[\w-]+)*)\}")
# References that lead to references are followed so many times.
_MOST_HOPS = 20


def recognizes(path: Path) -> bool:
    """Tell whether there are output folders."""
    return next(_folders(path), None) is not None


def find(path: Path) -> Iterator[Found]:
    """Yield each output folder, in the order of their paths, which begin with the time."""
    folders = list(_folders(path))
    for folder in folders:
        inner = [each for each in folders if folder in each.parents]
        yield Found(str(folder.resolve()), str(folder), partial(_read, path, folder, inner), by_place=True)


def _folders(path: Path) -> Iterator[Path]:
    for where, folders, _ in os.walk(path):
        folders.sort()
        if Path(where, _FOLDER, _FILES[0]).is_file():
            yield Path(where)


def _read(root: Path, folder: Path, inner: list[Path]) -> ForeignRun:
    run = ForeignRun(experiment=root.resolve().name)
    contents = {}
    for name in _FILES:
        try:
            path = file_inside(folder, f"{_FOLDER}/{name}")
            contents[name] = as_json(yaml.safe_load(read_regular(path)))
        except (ForeignError, OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            run.left_out.append(f"{name}: {' '.join(str(error).split())}")
        else:
            run.artifacts[f"{_FOLDER}/{name}"] = path
    if not contents:
        raise ForeignError(f"none of its files in {_FOLDER} can be read")
    config = mapping_of(contents.get("config.yaml"))
    run.config = {name: _resolved(value, config, [name]) for name, value in config.items()}
    run.stopped = (folder / _FOLDER / _FILES[0]).stat().st_mtime
    _join(run, folder, inner)
    run.title = folder.relative_to(root).as_posix() if folder != root else folder.resolve().name
    _take_hydra(run, folder, mapping_of(mapping_of(contents.get("hydra.yaml")).get("hydra")))
    run.info["hydra"]["overrides"] = contents.get("overrides.yaml") or []
    return run


def _take_hydra(run: ForeignRun, folder: Path, hydra: Mapping[str, Any]) -> None:
    """Take what Hydra records about itself and the job."""
    job, runtime = mapping_of(hydra.get("job")), mapping_of(hydra.get("runtime"))
    run.experiment = str(job.get("name") or run.experiment)
    run.info["hydra"] = {
        name: value
        for name, value in (
            ("choices", runtime.get("choices")), ("cwd", runtime.get("cwd")), ("version", runtime.get("version")),
            ("mode", hydra.get("mode")), ("num", job.get("num")),
        )
        if value is not None
    }  # fmt: skip
    with contextlib.suppress(OSError, ValueError):
        run.output = run.output or read_regular(file_inside(folder, f"{run.experiment}.log"))


def _join(run: ForeignRun, folder: Path, inner: list[Path]) -> None:
    """Add the points and media that lie in the folder, and not in the folders of further runs below it."""
    claimed = list(inner)
    times: list[float] = []
    for reader in (dvclive_folders, event_files, csv_files):
        for found in list(reader.find(folder)):
            source = Path(found.place)
            if any(each == source or each in source.parents for each in claimed):
                continue
            try:
                part = found.read()
            except (ForeignError, OSError) as error:
                run.left_out.append(f"{source.relative_to(folder)}: {error}")
                continue
            if reader is dvclive_folders:
                claimed.append(source)
            name = source.relative_to(folder).as_posix()
            _add(run, part, name if name != "." else reader.KIND)
            times += [part.stopped] if part.stopped is not None else []
    run.stopped = max(times, default=run.stopped)


def _add(run: ForeignRun, part: ForeignRun, name: str) -> None:
    """Add what another reader has read; of metrics with equal points, only one."""
    present = {curve.name: curve for curve in run.curves}
    for curve in part.curves:
        same = present.get(curve.name)
        if same is None:
            run.curves.append(curve)
        elif not _has_same_points(same, curve):
            run.curves.append(dataclasses.replace(curve, name=f"{name}/{curve.name}"))
    run.media += part.media
    run.artifacts |= {f"{name}/{file}": path for file, path in part.artifacts.items()}
    run.left_out += [f"{name}: {sentence}" for sentence in part.left_out]
    run.status = part.status if run.status == UNKNOWN else run.status
    run.started = min((time for time in (run.started, part.started) if time is not None), default=None)
    for kind, entries in (("hparams", part.config), ("others", part.info)):
        if entries:
            run.info.setdefault(kind, {})[name] = entries


def _has_same_points(curve: Curve, other: Curve) -> bool:
    """Compare two curves in 32 bits, which is all that event files have."""
    one, another = curve.values.astype(np.float32), other.values.astype(np.float32)
    return np.array_equal(curve.steps, other.steps) and np.array_equal(one, another, equal_nan=True)


def _resolved(value: Any, config: Mapping[str, Any], path: list[str]) -> Any:
    """Replace each `${...}` that is a number or text elsewhere in the config; others, such as resolvers, stay."""
    if isinstance(value, dict):
        return {name: _resolved(item, config, [*path, str(name)]) for name, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, config, [*path, str(index)]) for index, item in enumerate(value)]
    entry: Any = value
    for _ in range(_MOST_HOPS):
        match = _REFERENCE.fullmatch(entry) if isinstance(entry, str) else None
        if match is None:
            return entry
        path = [*(path[: len(path) - len(match[1])] if match[1] else ()), *match[2].split(".")]
        entry = functools.reduce(lambda inner, part: mapping_of(inner).get(part, {}), path, config)
        if isinstance(entry, dict | list):
            break
    return value
