"""Runs in MLflow, written through its own client: to a server, or to a database in a folder.

Tags keep what MLflow has no field for. `sacristan.state` is written last: a run without it was left by a killed export.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import re
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.observers.record.files import relative_path
from sacristan.observers.record.redaction import hide_passwords
from sacristan.runs.errors import ForeignError, StoreError
from sacristan.runs.query.texts import value_text
from sacristan.runs.stores import Content, Run
from sacristan.runs.stores.settings import flat_config
from sacristan.runs.transfer.targets import start_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

LACKS = (
    "MLflow keeps times in milliseconds, steps as integers and infinities as the greatest float",
    "MLflow keeps one of several points with the same time, step and value",
    "MLflow stores no sources and no provenance",
)
NEEDS = ("mlflow",)
_UID, _STATE = "sacristan.uid", "sacristan.state"
_STATUSES = {
    "COMPLETED": "FINISHED",
    "COMPLETED_WITH_LOSS": "FINISHED",
    "FAILED": "FAILED",
    "RUNNING": "RUNNING",
    "QUEUED": "SCHEDULED",
}
# MLflow's limits: points in a request, characters of a name, of a parameter and of a tag.
_BATCH, _NAME, _PARAM, _TAG = 1000, 250, 6000, 5000


def open_target(output: str) -> MlflowTarget:
    """Open an address as MLflow writes it, `http://...` or `sqlite:///...`, or a folder that gets a database."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # minutes otherwise, where no server is
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    artifacts = None
    if "://" not in output:
        folder = Path(output).resolve()
        if any(folder.glob("*/meta.yaml")) or (folder.exists() and not folder.is_dir()):
            raise ForeignError(
                f"{output} is no folder that MLflow still writes to; name a new folder, or the address of a server"
            )
        folder.mkdir(parents=True, exist_ok=True)
        output = f"sqlite:///{folder}/mlflow.db"
    if output.startswith("sqlite:///"):
        # Beside the database; MLflow would put them into the working folder.
        file = Path(output.removeprefix("sqlite:///").partition("?")[0]).resolve()
        artifacts = (file.parent / "artifacts").as_uri()
    with _errors(output):
        return MlflowTarget(MlflowClient(output), output, artifacts)


@contextlib.contextmanager
def _errors(address: str) -> Iterator[None]:
    """Turn what MLflow and its database raise into a `ForeignError`, and keep their warnings quiet."""
    from mlflow.exceptions import MlflowException

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (MlflowException, OSError, ImportError) as error:
        text = (" ".join(str(error).split()) or type(error).__name__)[:300]
        raise ForeignError(hide_passwords(f"{address}: {text}")) from error


class MlflowTarget:
    """An MLflow server or database; artifacts of new experiments go to the URL `artifacts`, if there is one."""

    def __init__(self, client: MlflowClient, address: str, artifacts: str | None) -> None:
        self._client, self._address, self._artifacts = client, address, artifacts
        self._runs: dict[str, dict[str, str]] = {}  # of each key: state by MLflow's id of the run
        for run in self._exported():
            self._runs.setdefault(run.data.tags[_UID], {})[run.info.run_id] = run.data.tags.get(_STATE, "")

    def _exported(self) -> Iterator[Any]:
        """Yield the runs that exports have written, whether or not they are complete."""
        ids = [each.experiment_id for each in _all_pages(self._client.search_experiments)]
        for start in range(0, len(ids), 100):
            search = functools.partial(self._client.search_runs, ids[start : start + 100], f"tags.`{_UID}` LIKE '%'")
            yield from _all_pages(search)

    def find(self, key: str) -> str | None:
        states = list(self._runs.get(key, {}).values())
        if not states:
            return None
        return states[0] if len(states) == 1 else ""  # more than one were left by a killed export

    def put(self, run: Run, key: str, state: str) -> tuple[int, list[str]]:
        with _errors(self._address):
            created = self._create(run, key)
            writing = _RunWriter(self._client, created, run)
            num_points = writing.write()
            self._client.set_tag(created, _STATE, state)
            for earlier in self._runs.get(key, ()):
                self._client.delete_run(earlier)
        self._runs[key] = {created: state}
        return num_points, writing.left_out

    def forget_place(self) -> None:
        """Make the paths of artifacts relative to the database's folder, as MLflow looks below where it starts."""
        file = Path(self._address.removeprefix("sqlite:///"))
        base = f"{file.parent.as_uri()}/"
        with contextlib.closing(sqlite3.connect(file)) as database:
            database.execute("UPDATE runs SET artifact_uri = replace(artifact_uri, ?, '')", [base])
            # That of MLflow's own experiment, which has no runs, names the working folder.
            database.execute("UPDATE experiments SET artifact_location = 'artifacts'")
            database.commit()
            database.execute("VACUUM")  # which clears what was overwritten

    def _create(self, run: Run, key: str) -> str:
        name = run.name or "sacristan"
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None and experiment.lifecycle_stage != "active":
            raise ForeignError(
                f"{hide_passwords(self._address)}: the experiment {name!r} was deleted there; restore it, or purge it"
            )
        id = experiment.experiment_id if experiment else self._client.create_experiment(name, self._artifacts)
        tags = {
            _UID: key,
            "sacristan.id": run.id,
            "sacristan.status": run.status,
            "sacristan.tags": ", ".join(run.tags),
            "sacristan.result": _result_text(run.result),
            "sacristan.command": run.command[:_TAG],
            "mlflow.note.content": run.note[:_TAG],
        }
        kept = {name: text for name, text in tags.items() if text}
        return str(
            self._client.create_run(id, round(start_of(run) * 1000), kept, run.display_name or run.id).info.run_id
        )


def _all_pages(search: Callable[..., Any]) -> Iterator[Any]:
    """Yield the results of a search of MLflow's client from all pages."""
    token = None
    while True:
        page = search(page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _result_text(result: Any) -> str:
    text = "" if result is None else json.dumps(result, default=str)
    return text if len(text) <= _TAG else ""


class _RunWriter:
    """Writes the content of a run, whose id in MLflow is `id`."""

    def __init__(self, client: MlflowClient, id: str, run: Run) -> None:
        self.left_out: list[str] = []
        self._client, self._id, self._run = client, id, run

    def write(self) -> int:
        self._add_params()
        num_points = sum(self._add_metric(name, called) for name, called in self._named(self._run.metrics, "metric"))
        self._add_files()
        if self._run.odd_values():
            self.left_out.append("logged values that are no numbers")
        status = _STATUSES.get(self._run.status, "KILLED")
        stopped = self._run.stop_time
        if status in ("RUNNING", "SCHEDULED"):
            self._client.update_run(self._id, status)
        else:
            self._client.set_terminated(self._id, status, round(stopped.timestamp() * 1000) if stopped else None)
        return num_points

    def _named(self, names: Any, noun: str) -> Iterator[tuple[str, str]]:
        """Yield each name with the one that MLflow accepts instead."""
        taken: set[str] = set()
        for name in names:
            parts = (part for part in re.sub(r"[^\w.\- :/]", "_", name).split("/") if part not in ("", ".", ".."))
            called = short = "/".join(parts)[: _NAME - 10] or "_"
            for number in itertools.count(2):
                if called not in taken:
                    break
                called = f"{short}_{number}"
            taken.add(called)
            if called != name:
                self.left_out.append(f"the name of the {noun} {name!r}, which is {called!r} in MLflow")
            yield name, called

    def _add_params(self) -> None:
        from mlflow.entities import Param

        values = flat_config(self._run)
        params = []
        for name, called in self._named(values, "setting"):
            text = "None" if values[name] is None else value_text(values[name], exact=True)
            if len(text) > _PARAM:
                self.left_out.append(f"setting {name!r}: {len(text)} characters, and {_PARAM} are allowed")
            else:
                params.append(Param(called, text))
        for start in range(0, len(params), 100):
            self._client.log_batch(self._id, params=params[start : start + 100])

    def _add_metric(self, name: str, called: str) -> int:
        from mlflow.entities import Metric

        series = self._run.metric(name)
        if series.steps.dtype.kind == "f" and (series.steps % 1 != 0).any():
            self.left_out.append(f"metric {name!r}: fractions of its steps")
        times = ((series.times + start_of(self._run)) * 1000).round().astype("int64").tolist()
        rows = zip(series.values.tolist(), times, series.steps.astype("int64").tolist(), strict=True)
        while batch := [Metric(called, *row) for row in itertools.islice(rows, _BATCH)]:
            self._client.log_batch(self._id, metrics=batch)
        return len(series)

    def _add_files(self) -> None:
        """Add artifacts, media and output as MLflow's artifacts."""
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for name, content in self._files():
                relative = relative_path(name)
                if relative is None:
                    self.left_out.append(f"{name!r}, which is no path below a folder")
                    continue
                try:
                    path = content.save(folder / relative.name)
                except StoreError as error:
                    self.left_out.append(f"{name}: {error}")
                    continue
                inside = relative.parent.as_posix()
                self._client.log_artifact(self._id, str(path), None if inside == "." else inside)
                path.unlink()
            if output := self._save_output(folder / "output.txt"):
                self._client.log_artifact(self._id, str(output))

    def _save_output(self, path: Path) -> Path | None:
        """Write the run's output to a file, a piece at a time; return None if there is none."""
        start = 0
        with path.open("wb") as stream:
            while True:
                piece, start = self._run.read_output(start, 2**20)
                if not piece:
                    return path if start else None
                stream.write(piece)

    def _files(self) -> Iterator[tuple[str, Content]]:
        for content in self._run.stored("artifacts"):
            yield content.name, content
        seen: set[str] = set()
        for _, contents in self._run.media_entries():
            for content in contents:
                if content.name not in seen:
                    seen.add(content.name)
                    yield f"media/{content.name}", content
