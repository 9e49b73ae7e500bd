"""Runs of MLflow: a SQLite database, or a folder of files (`mlruns`).

MLflow's own client upgrades a database when it opens it, so it is not used here. Runs that MLflow has marked as deleted
are skipped. Parameters are texts in MLflow; those that spell a number or a boolean become one. Nested runs are runs of
their own, and their metrics, parameters and tags are also in the run around them, as `sacristan run` records them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import yaml

from sacristan.observers.record.other_trackers import parse_value, part_name
from sacristan.runs.errors import ForeignError
from sacristan.runs.query import mapping_of
from sacristan.runs.transfer.trackers.foreign_run import UNKNOWN, Curve, ForeignRun, Found, as_steps, take_status
from sacristan.runs.transfer.trackers.source_files import (
    damage_of,
    files_below,
    is_database,
    is_inside,
    open_database,
    table_columns,
)

KIND = "mlflow"
_TABLES = {"runs", "experiments", "metrics", "params", "tags"}
# MLflow stores infinities as the greatest floats.
_MOST = np.finfo(np.float64).max
_STATUSES = {
    "FINISHED": "COMPLETED",
    "FAILED": "FAILED",
    "KILLED": "INTERRUPTED",
    "RUNNING": "DEAD",
    "SCHEDULED": "DEAD",
}
# The numbers that files have instead of names.
_NUMBERS = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
# Folders of a run, and of nothing else.
_PARTS, _MODEL_PARTS = ("metrics", "params"), ("params", "tags")
# The tag that names the run around a nested one.
_PARENT = "mlflow.parentRunId"
# Schemes of addresses of artifacts that may lie beside the store.
_LOCAL = ("", "file", "mlflow-artifacts")
_LINK = "a link, which is not followed; put a copy in its place"
# By metric: (step, value, milliseconds since 1970).
_Points = dict[str, list[tuple[Any, float, int]]]


def recognizes(path: Path) -> bool:
    """Tell whether this is a database of MLflow, a folder of its files, or a project's folder with either."""
    return next(_databases(path), None) is not None or next(_run_folders(path), None) is not None


def find(path: Path) -> Iterator[Found]:
    """Yield each run that is not deleted, once."""
    keys: set[str] = set()
    for file in _databases(path) if path.is_dir() else [path]:
        for found in _find_rows(file):
            keys.add(found.key)
            yield found
    models = functools.cache(_models_below)
    folders = {folder.name: folder for folder in _run_folders(path)}
    parents = {key: _parent_of(folder) for key, folder in folders.items()}
    starts = {key: _meta(folders[key], []).get("start_time") or 0 for key, parent in parents.items() if parent}
    family = _Family([(key, parents[key]) for key in sorted(starts, key=lambda key: (starts[key], key))])
    for key, folder in folders.items():
        if key not in keys:
            read = partial(family.read, key, lambda key: _read_folder(folders[key], models))
            yield Found(key, str(folder), read)


class _Family:
    """The nested runs of a store (key and parent, as they began), which are parts of the run around them as well."""

    def __init__(self, nested: Sequence[tuple[str, str]]) -> None:
        self._nested = nested

    def read(self, key: str, read: Callable[[str], ForeignRun]) -> ForeignRun:
        """Read a run with the parts in it."""
        run, parts = read(key), {key: ""}
        for child, parent in self._nested:
            if parent in parts and child not in parts:
                inner = read(child)
                parts[child] = part_name(inner.title, parts[parent], parts.values())
                _add_part(run, parts[child], inner)
        return run


def _add_part(run: ForeignRun, name: str, part: ForeignRun) -> None:
    """Add metrics, parameters and tags of a nested run; its files and data are its own."""
    run.curves += [dataclasses.replace(curve, name=f"{name}/{curve.name}") for curve in part.curves]
    if part.config:
        group = run.config
        for each in name.split("/"):
            if not isinstance(group.get(each), dict):
                group[each] = {}
            group = group[each]
        group |= part.config
    tags = part.info["mlflow"]["tags"].items()
    own = {f"{name}/{tag}": text for tag, text in tags if not tag.startswith("mlflow.")}
    run.info["mlflow"]["tags"] |= own


def _databases(path: Path) -> Iterator[Path]:
    """Yield the databases of MLflow at a path; one with MLflow's default name may be damaged."""
    for file in sorted(path.glob("*.db")) if path.is_dir() else [path]:
        try:
            if is_database(file) and is_inside(path, file):
                with open_database(file) as database:
                    is_one = table_columns(database).keys() >= _TABLES
                if is_one:
                    yield file
        except ForeignError:
            if file.name == "mlflow.db":
                yield file
        except OSError:
            continue


def _find_rows(path: Path) -> Iterator[Found]:
    with open_database(path) as database:
        missing = _TABLES - table_columns(database).keys()
        if missing:
            raise ForeignError(f"{path} has no table {', '.join(sorted(missing))}; expected a database of MLflow")
        damage = damage_of(path, database)
        keys = database.execute(
            "SELECT run_uuid FROM runs WHERE lifecycle_stage IS NOT 'deleted' ORDER BY start_time, run_uuid"
        ).fetchall()
        query = (
            "SELECT run_uuid, value FROM tags JOIN runs USING (run_uuid) WHERE key = ? "
            "AND lifecycle_stage IS NOT 'deleted' ORDER BY start_time, runs.rowid"
        )
        family = _Family([tuple(row) for row in _selected(database, query, _PARENT, "tags", [])])
        for (key,) in keys:
            read = partial(family.read, key, lambda key: _read_row(path, database, key, damage))
            yield Found(key, f"{path}, run {key}", read)


def _made(status: Any, experiment: str, tags: dict[str, str], params: dict[str, str], points: _Points) -> ForeignRun:
    status = _NUMBERS.get(status, status) if isinstance(status, int) else status
    run = ForeignRun(experiment=experiment, title=tags.pop("mlflow.runName", ""))
    run.status = _STATUSES.get(str(status), UNKNOWN)
    run.config = {name: parse_value(text) for name, text in params.items()}
    run.note = tags.pop("mlflow.note.content", "")
    run.command = [tags["mlflow.source.name"]] if "mlflow.source.name" in tags else []
    run.host = {"user": tags["mlflow.user"]} if "mlflow.user" in tags else {}
    take_status(run, tags.get("sacristan.status"))
    run.tags = [tag for tag in tags.get("sacristan.tags", "").split(", ") if tag]
    with contextlib.suppress(ValueError):
        run.result = json.loads(tags.get("sacristan.result", "null"))
    run.info = {"mlflow": {"status": str(status), "tags": tags}}
    for name, triples in points.items():
        steps, values, times = zip(*triples, strict=True)
        run.curves.append(Curve(name, as_steps(steps), np.array(values, np.float64), np.array(times) / 1000))
    return run


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) and milliseconds > 0 else None


# ---------------------------------------------------------------------- a database


def _read_row(path: Path, database: sqlite3.Connection, key: str, damage: list[str]) -> ForeignRun:
    left_out = [*damage]
    try:
        database.row_factory = sqlite3.Row
        row = database.execute(
            "SELECT runs.*, experiments.name AS experiment FROM runs LEFT JOIN experiments USING (experiment_id) "
            "WHERE run_uuid = ?",
            (key,),
        ).fetchone()
    except sqlite3.Error as error:
        raise ForeignError(f"its row cannot be read ({error})") from error
    tags, params = (
        {each["key"]: each["value"] for each in _rows(database, table, key, left_out)} for table in ("tags", "params")
    )
    points: _Points = {}
    for each in _rows(database, "metrics", key, left_out):
        value = math.nan if each["is_nan"] else each["value"]
        value = math.copysign(math.inf, value) if abs(value) == _MOST else value
        points.setdefault(each["key"], []).append((each["step"], value, each["timestamp"]))
    run = _made(row["status"], row["experiment"] or "mlflow", tags, params, points)
    run.left_out += left_out
    run.title = run.title or row["name"] or ""
    run.started, run.stopped = _seconds(row["start_time"]), _seconds(row["end_time"])
    _take_artifacts(run, "", _artifact_folder(row["artifact_uri"], path.parent, key))
    tables = table_columns(database)
    if "inputs" in tables and "datasets" in tables:
        _take_rows_of_data(run, database, key)
    if "logged_models" in tables:
        _take_rows_of_models(run, path, database, key)
    return run


def _take_rows_of_data(run: ForeignRun, database: sqlite3.Connection, key: str) -> None:
    query = (
        "SELECT datasets.*, inputs.input_uuid FROM inputs JOIN datasets ON inputs.source_id = datasets.dataset_uuid "
        "WHERE inputs.source_type = 'DATASET' AND inputs.destination_type = 'RUN' AND inputs.destination_id = ?"
    )
    for row in _selected(database, query, key, "datasets", run.left_out):
        tags = _selected(database, "SELECT * FROM input_tags WHERE input_uuid = ?", row["input_uuid"], "input_tags", [])
        parts = {name.removeprefix("dataset_"): row[name] for name in row.keys()}  # noqa: SIM118 (not a dict)
        _take_dataset(run, parts, {tag["name"]: tag["value"] for tag in tags})


def _take_rows_of_models(run: ForeignRun, path: Path, database: sqlite3.Connection, key: str) -> None:
    query = "SELECT * FROM logged_models WHERE source_run_id = ? AND lifecycle_stage IS NOT 'deleted'"
    for row in _selected(database, query, key, "logged_models", run.left_out):
        id, parts = row["model_id"], {}
        for kind in ("param", "tag"):
            query = f"SELECT * FROM logged_model_{kind}s WHERE model_id = ?"
            entries = _selected(database, query, id, f"logged_model_{kind}s", run.left_out)
            parts[f"{kind}s"] = {each[f"{kind}_key"]: each[f"{kind}_value"] for each in entries}
        folder = _artifact_folder(row["artifact_location"], path.parent, id)
        _take_model(run, {"id": id, "name": row["name"], "type": row["model_type"], **parts}, folder)


def _rows(database: sqlite3.Connection, table: str, key: str, left_out: list[str]) -> Iterator[sqlite3.Row]:
    """Yield a run's rows of a table in the order of writing, as far as the file is intact."""
    return _selected(database, f"SELECT * FROM {table} WHERE run_uuid = ? ORDER BY rowid", key, table, left_out)


def _selected(
    database: sqlite3.Connection, query: str, key: str, table: str, left_out: list[str]
) -> Iterator[sqlite3.Row]:
    num_rows = 0
    try:
        for row in database.execute(query, (key,)):
            num_rows += 1
            yield row
    except sqlite3.Error as error:
        left_out.append(f"{table} after row {num_rows} ({error})")


# ---------------------------------------------------------------------- a folder of files


def _run_folders(path: Path) -> Iterator[Path]:
    """Yield the folder of each run that is not deleted, at most two levels down, without links that lead out."""
    below = path / "mlruns" if (path / "mlruns").is_dir() else path
    for folder in (below, *sorted(below.glob("*")), *sorted(below.glob("*/*"))):
        with contextlib.suppress(OSError):
            meta = (folder / "meta.yaml").read_text(errors="replace")
            is_run = re.search(r"^run_(uu)?id:", meta, re.M) or any((folder / name).is_dir() for name in _PARTS)
            is_other = re.search(r"^(lifecycle_stage: *deleted|model_id:)", meta, re.M)
            if is_run and not is_other and is_inside(path, folder / "meta.yaml"):
                yield folder


def _read_folder(folder: Path, models: Callable[[Path], dict[str, list[Path]]]) -> ForeignRun:
    left_out: list[str] = []
    meta, experiment = _meta(folder, left_out), _meta(folder.parent, left_out)
    if meta.get("status") is None:
        left_out.append("meta.yaml: it is cut off, and does not say how the run ended")
    name = experiment.get("name")
    tags, params = ({each: _text(path) for each, path in _files(folder, kind, left_out)} for kind in ("tags", "params"))
    points = {each: _points(path, left_out) for each, path in _files(folder, "metrics", left_out)}
    run = _made(meta.get("status"), str(name or "mlflow"), tags, params, {k: v for k, v in points.items() if v})
    run.left_out += left_out
    run.title = run.title or str(meta.get("run_name") or "")
    run.started, run.stopped = _seconds(meta.get("start_time")), _seconds(meta.get("end_time"))
    base = folder.parent.parent
    _take_artifacts(run, "", _artifact_folder(meta.get("artifact_uri"), base, folder.name, folder / "artifacts"))
    for entry in sorted(folder.glob("inputs/*")):
        used = _meta(entry, run.left_out)
        if used.get("source_type") == "DATASET":
            dataset = folder.parent / "datasets" / PurePosixPath(str(used.get("source_id"))).name
            description = _meta(dataset, run.left_out) if is_inside(folder.parent, dataset) else {}
            _take_dataset(run, description, mapping_of(used.get("tags")))
    for entry in models(folder.parent).get(folder.name, ()):
        model = _meta(entry, run.left_out)
        parts: dict[str, Any] = {"id": entry.name, "name": model.get("name"), "type": model.get("model_type")}
        for kind in _MODEL_PARTS:
            parts[kind] = {each: _text(path) for each, path in _files(entry, kind, run.left_out)}
        _take_model(run, parts, _artifact_folder(model.get("artifact_location"), base, entry.name, entry / "artifacts"))
    return run


def _models_below(experiment: Path) -> dict[str, list[Path]]:
    """Return the folders of the models that the runs of an experiment have logged, by run."""
    folders: dict[str, list[Path]] = {}
    for folder in sorted(experiment.glob("models/*")):
        meta = _meta(folder, []) if is_inside(experiment, folder) else {}
        if meta.get("lifecycle_stage") != "deleted" and meta.get("source_run_id"):
            folders.setdefault(str(meta["source_run_id"]), []).append(folder)
    return folders


def _parent_of(folder: Path) -> str:
    """Return the key of the run around a nested one; empty for none."""
    path = folder / "tags" / _PARENT
    try:
        return path.read_text() if is_inside(folder, path) else ""
    except (OSError, ValueError):
        return ""


def _meta(folder: Path, left_out: list[str]) -> dict[str, Any]:
    """Return the entries of a `meta.yaml`; none if it is missing or damaged."""
    path = folder / "meta.yaml"
    try:
        if not is_inside(folder, path):
            raise ValueError("a link that leads out of its folder")
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        left_out.append(f"{folder.name}/{path.name}: {' '.join(str(error).split())}")
        return {}
    return content if isinstance(content, dict) else {}


def _files(folder: Path, kind: str, left_out: list[str]) -> Iterator[tuple[str, Path]]:
    if is_inside(folder, folder / kind):
        yield from files_below(folder / kind, left_out)
    else:
        left_out.append(f"{kind}: {_LINK}")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        raise ForeignError(f"{path.parent.name}/{path.name}: {error}") from error


def _points(path: Path, left_out: list[str]) -> list[tuple[Any, float, int]]:
    """Read a metric: lines of milliseconds, value and step; old versions have no step."""
    points = []
    text = _text(path)
    lines = text.splitlines()
    if lines and not text.endswith("\n"):
        lines.pop()
        left_out.append(f"metric {path.name!r}: the last line has no end")
    for number, line in enumerate(lines, 1):
        try:
            time_ms, value, *rest = line.split()
            points.append((int(rest[0]) if rest else 0, float(value), int(time_ms)))
        except ValueError:
            left_out.append(f"metric {path.name!r}: line {number} is no point")
    return points


# ---------------------------------------------------------------------- artifacts


def _artifact_folder(address: Any, base: Path, key: str, *own: Path) -> Path | str:
    """Return the folder of a run's artifacts, even if the store was moved, or why not; never one of another run."""
    parts = urlsplit(str(address or ""))
    folder = Path(unquote(parts.path))
    candidates = list(own)
    if ".." in folder.parts:
        pass
    elif parts.scheme in ("", "file"):
        candidates += [folder, *(base.joinpath(*folder.parts[-depth:]) for depth in (5, 4, 3))]
    elif parts.scheme == "mlflow-artifacts":
        candidates.append(base / "mlartifacts" / unquote(parts.path).lstrip("/"))
    named = [each for each in candidates if each.name == "artifacts" and key in each.parts]
    for each in named:
        if each.is_dir() and not each.is_symlink():
            return each
    if any(each.is_symlink() for each in named):
        return f"artifacts: {_LINK}"
    return "" if parts.scheme in _LOCAL else f"artifacts are at {address}, and stay there"


def _take_artifacts(run: ForeignRun, prefix: str, folder: Path | str) -> None:
    if isinstance(folder, Path):
        run.artifacts |= {prefix + name: path for name, path in files_below(folder, run.left_out)}
    elif folder:
        run.left_out.append(prefix + folder)


def _take_dataset(run: ForeignRun, parts: Mapping[str, Any], tags: Mapping[str, Any]) -> None:
    """Take a data set that the run used; MLflow keeps its description, and not its content."""
    kept = ("name", "digest", "source_type", "source", "schema", "profile")
    description = {name: parts[name] for name in kept if parts.get(name) is not None}
    if not description:
        run.left_out.append("a data set that it used, whose description is missing")
        return
    run.used[f"{description.get('name', 'data')}-{description.get('digest', '')}"] = description
    entry = {name: description[name] for name in kept[:2] if name in description}
    run.info["mlflow"].setdefault("datasets", []).append({**entry, "tags": dict(tags)})


def _take_model(run: ForeignRun, parts: dict[str, Any], folder: Path | str) -> None:
    models = run.info["mlflow"].setdefault("models", [])
    name = str(parts["name"] or parts["id"])
    name = f"{name}-{parts['id']}" if any(name == model["name"] for model in models) else name
    models.append(parts)
    _take_artifacts(run, f"models/{name}/", folder)
