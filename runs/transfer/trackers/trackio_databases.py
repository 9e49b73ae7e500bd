"""Runs of Trackio: a SQLite database for each project, with media and artifacts in folders beside it.

Trackio's own package migrates a database when it opens it, so it is not used here. Parquet files beside a database are
copies of it, and are not read. Trackio does not record how a run ended.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sacristan.observers.media.kinds import Text
from sacristan.observers.record.media_files import Content, MediaEntry
from sacristan.runs.errors import ForeignError
from sacristan.runs.transfer.trackers.foreign_run import (
    ForeignRun,
    Found,
    Points,
    file_content,
    flat,
    histogram_content,
    table_content,
)
from sacristan.runs.transfer.trackers.source_files import (
    damage_of,
    file_inside,
    is_database,
    open_database,
    table_columns,
)

KIND = "trackio"
# The columns of metrics that no other tracker's table of that name has.
_COLUMNS = {"run_name", "step", "timestamp", "metrics"}
# JSON in Trackio has texts for these numbers.
_NUMBERS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


class _Project(NamedTuple):
    """A database that is open; it identifies runs by `run_id`, or by `run_name` if it is old."""

    path: Path
    database: sqlite3.Connection
    columns: dict[str, set[str]]
    identity: str
    damage: list[str]

    def rows(self, table: str, key: str, left_out: list[str], order: str = "id") -> Iterator[sqlite3.Row]:
        """Yield the rows of a run in a table, as far as they can be read; none if there is no such table."""
        if self.identity not in self.columns.get(table, ()):
            return
        try:
            yield from self.database.execute(
                f"SELECT * FROM {table} WHERE {self.identity} = ? ORDER BY {order}", (key,)
            )
        except sqlite3.Error as error:
            left_out.append(f"further rows of {table} ({error})")


def recognizes(path: Path) -> bool:
    """Tell whether this is a database of Trackio, or the folder of some."""
    return any(map(_has_runs, _files(path)))


def find(path: Path) -> Iterator[Found]:
    """Yield each run of each project; a damaged database counts as one."""
    others = [] if path.is_file() else [file for file in sorted(path.glob("*.db")) if not is_database(file)]
    for file in others:
        if not file.is_symlink() and file.is_file():
            error = ForeignError(f"{file}: it is damaged, or no database")
            yield Found(file.stem, str(file), partial(_fail, error))
    for file in _files(path):
        try:
            with open_database(file) as database:
                database.row_factory = sqlite3.Row
                columns = table_columns(database)
                if not columns.get("metrics", set()) >= _COLUMNS:
                    continue
                identity = "run_id" if "run_id" in columns["metrics"] else "run_name"
                project = _Project(file, database, columns, identity, damage_of(file, database))
                for key, since in _keys(project):
                    source, read, former = f"{file}, run {key}", _RunReader(project, key).read, f"{file.stem}/{key}"
                    is_unique = project.identity == "run_id"  # unlike a name, which others may have at other places
                    yield Found(former if is_unique else f"{former}/{since}", source, read, former=former)
        except ForeignError as error:
            yield Found(file.stem, str(file), partial(_fail, error))


def _files(path: Path) -> Iterator[Path]:
    inside = [file for file in sorted(path.glob("*.db")) if not file.is_symlink()]
    yield from filter(is_database, inside if path.is_dir() else [path])


def _has_runs(path: Path) -> bool:
    try:
        with open_database(path) as database:
            return table_columns(database).get("metrics", set()) >= _COLUMNS
    except ForeignError:
        return False


def _fail(error: ForeignError) -> ForeignRun:
    raise error


def _keys(project: _Project) -> list[tuple[str, str]]:
    """Return the identities of all runs, and the time of the first row of each, oldest first."""
    times = {"metrics": "timestamp", "system_metrics": "timestamp", "configs": "created_at"}
    tables = " UNION ALL ".join(
        f"SELECT {project.identity} AS key, {time} AS at FROM {table}"
        for table, time in times.items()
        if {project.identity, time} <= project.columns.get(table, set())
    )
    rows = project.database.execute(
        f"SELECT key, MIN(at) AS since FROM ({tables}) WHERE key IS NOT NULL GROUP BY key ORDER BY since"
    )
    return [(str(key), str(since)) for key, since in rows]


class _RunReader:
    """Reads the run with an identity in the database of its project."""

    def __init__(self, project: _Project, key: str) -> None:
        self.project, self.key = project, key
        self.run = ForeignRun(experiment=project.path.stem)
        self.points = Points()
        self.others: dict[str, int] = {}  # by name, the number of values that are no points

    def read(self) -> ForeignRun:
        run, times = self.run, []
        run.left_out += self.project.damage
        for row in self.project.rows("metrics", self.key, run.left_out, "timestamp, id"):
            run.title = str(row["run_name"])
            times.append(self._take("", row, row["step"]))
        for number, row in enumerate(self.project.rows("system_metrics", self.key, run.left_out, "timestamp, id")):
            run.title = run.title or str(row["run_name"])
            times.append(self._take("system/", row, number))
        self._take_config()
        if alerts := list(self.project.rows("alerts", self.key, run.left_out)):
            names = ("timestamp", "level", "title", "text", "step")
            run.info["alerts"] = [{name: row[name] for name in names} for row in alerts]
        self._take_artifacts()
        if num_traces := len(list(self.project.rows("traces", self.key, run.left_out))):
            run.left_out.append(f"{num_traces} traces of conversations")
        run.left_out += [f"{count} values of {name!r} are no numbers" for name, count in self.others.items()]
        run.curves = self.points.curves()
        run.stopped = max((at for at in times if at == at), default=run.started)
        return run

    def _take(self, prefix: str, row: sqlite3.Row, step: Any) -> float:
        """Take a row of values; return its time."""
        at = _seconds(row["timestamp"])
        try:
            values = dict(json.loads(row["metrics"]))
        except (TypeError, ValueError):
            self.run.left_out.append(f"row {row['id']} of {prefix or 'metrics'} is no JSON object")
            return at
        for name, value in flat(values, prefix):
            value = _number(value)
            if isinstance(value, int | float):
                self.points.add(name, step, float(value), at, origin=prefix)
            elif isinstance(value, dict):
                self._take_medium(name, value, step, at)
            elif value is not None:
                self.others[name] = self.others.get(name, 0) + 1
        return at

    def _take_medium(self, name: str, value: dict[str, Any], step: Any, at: float) -> None:
        kind = str(value["_type"]).removeprefix("trackio.")
        try:
            kind, content = self._content(kind, value)
        except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
            self.run.left_out.append(f"{name!r} of step {step}: a {kind} ({error})")
        else:
            self.run.media.append(MediaEntry(name, kind, step, at, content))

    def _content(self, kind: str, value: dict[str, Any]) -> tuple[str, Content]:
        if kind == "histogram":
            return kind, histogram_content(value["values"], value["bins"])
        if kind == "markdown":
            return "text", Text(str(value["_value"])).encode()
        if kind == "table":
            rows = value["_value"]
            columns = list(dict.fromkeys(column for row in rows for column in row))
            return kind, table_content(columns, [[row.get(column) for column in columns] for row in rows])
        kind, content = file_content(file_inside(self.project.path.parent / "media", str(value["file_path"])))
        if caption := value.get("caption"):
            content.meta["caption"] = str(caption)
        return kind, content

    def _take_config(self) -> None:
        run = self.run
        for row in self.project.rows("configs", self.key, run.left_out):
            run.title = run.title or str(row["run_name"])
            try:
                config = {name: _number(value) for name, value in dict(json.loads(row["config"])).items()}
            except (TypeError, ValueError):
                run.left_out.append("its config is no JSON object")
                continue
            created, user, group = (config.get(name) for name in ("_Created", "_Username", "_Group"))
            run.config = {name: value for name, value in config.items() if not name.startswith("_")}
            run.started = None if np.isnan(_seconds(created)) else _seconds(created)
            run.host = {"user": user} if user else {}
            run.info["trackio"] = {"group": group} if group else {}

    def _take_artifacts(self) -> None:
        if not {"run_artifact_links", "artifact_versions", "artifacts"} <= self.project.columns.keys():
            return
        blobs = self.project.path.parent / "artifacts" / self.project.path.stem / "blobs" / "sha256"
        query = (
            "SELECT DISTINCT name, version, manifest FROM run_artifact_links AS link "
            "JOIN artifact_versions AS version ON version.id = link.artifact_version_id "
            "JOIN artifacts ON artifacts.id = version.artifact_id "
            f"WHERE link.{self.project.identity} = ? AND direction = 'output' ORDER BY version.id"
        )
        try:
            for name, version, manifest in self.project.database.execute(query, (self.key,)):
                for entry in json.loads(manifest):
                    self._take_file(f"{name}/v{version}/{entry['path']}", blobs, str(entry["digest"]))
        except (sqlite3.Error, KeyError, TypeError, ValueError) as error:
            self.run.left_out.append(f"further files of artifacts ({error})")

    def _take_file(self, name: str, blobs: Path, digest: str) -> None:
        path = file_inside(blobs, f"{digest[:2]}/{digest}")
        if path.is_file():
            self.run.artifacts[name] = path
        else:
            self.run.left_out.append(f"file {name!r}: its content is not in {blobs}")


def _number(value: Any) -> Any:
    return _NUMBERS.get(value, value) if isinstance(value, str) else value


def _seconds(text: Any) -> float:
    """Return a time in ISO 8601, UTC without a zone, as seconds since 1970; NaN if it is not a time."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError):
        return float("nan")
