"""`mlflow`: its fluent functions, `MlflowClient` and autologging, all of which call `TrackingServiceClient`.

Unless `--also mlflow` is given, MLflow keeps what it logs in a temporary folder, whatever server or folder the script
names, so that the script can read it back. Settings have the types that `sacristan import` gives them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sacristan.experiments.scripts.capturing import Capture, watched
from sacristan.experiments.scripts.loggers.open_runs import OpenRuns
from sacristan.observers.record.other_trackers import parse_value

LACKS = ("log_image(synchronous=False)", "log_inputs", "traces", "registered models", "delete_tag and the like")
_NAME = "mlflow"
# Calls of runs that are named, by the method which they come to.
_NAMED = {
    **{name: name for name in ("log_inputs", "delete_tag", "delete_run", "restore_run", "set_experiment_tag")},
    "_log_artifact_async": "log_image(synchronous=False)",
}
# Methods of the registry of models that change it.
_CHANGING = ("create_", "update_", "rename_", "set_", "transition_", "copy_", "link_", "delete_")
_PARENT, _TITLE, _NOTE, _OWN = "mlflow.parentRunId", "mlflow.runName", "mlflow.note.content", "mlflow."


def prepare(capture: Capture) -> None:
    """Keep MLflow from sending how it is used to its makers, which it begins to do when it is imported."""
    if not capture.lets(_NAME):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


def attach(module: Any, capture: Capture) -> None:
    """Watch the class that all calls go through."""
    from mlflow.tracking._tracking_service import client

    if not capture.lets(_NAME):
        _keep_for_now()
    service, calls = client.TrackingServiceClient, _Calls(capture)
    for name in [name for name in vars(_Calls) if not name.startswith("_")]:
        if hasattr(service, name):
            setattr(service, name, watched(getattr(service, name), getattr(calls, name)))
    for name, call in _NAMED.items():
        if hasattr(service, name):
            _name(service, name, call, capture)
    from mlflow.tracing.client import TracingClient
    from mlflow.tracking._model_registry.client import ModelRegistryClient

    _name(TracingClient, "start_trace", "trace", capture)

    for name in vars(ModelRegistryClient):
        if name.startswith(_CHANGING):
            _name(ModelRegistryClient, name, name, capture)


def _name(client: type, method: str, call: str, capture: Capture) -> None:
    """Name a call that is not recorded, once it is called."""
    setattr(client, method, watched(getattr(client, method), lambda *_, **__: capture.unknown(_NAME, call)))


def _keep_for_now() -> None:
    """Give MLflow one store of runs and one of models, in a folder that is removed when the process ends."""
    from mlflow.store.model_registry.file_store import FileStore as ModelStore
    from mlflow.tracking._model_registry.utils import _get_store_registry
    from mlflow.tracking._tracking_service.utils import _tracking_store_registry

    folder = tempfile.mkdtemp(prefix="sacristan-mlflow-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with _allowing_files():
        runs, models = _store_of_runs(f"{folder}/runs"), ModelStore(f"{folder}/models")
    stores: Any = (_tracking_store_registry, _get_store_registry())
    stores[0].get_store, stores[1].get_store = (lambda *_, **__: runs), (lambda *_, **__: models)


def _store_of_runs(folder: str) -> Any:
    """Return a store where runs of earlier processes, which the script's own store has, begin again under their ids."""
    from mlflow.store.tracking.file_store import FileStore
    from mlflow.tracking.fluent import _get_experiment_id

    class Runs(FileStore):  # type: ignore[misc,unused-ignore]  # MLflow may have no types
        def _find_run_root(self, run_uuid: str, *args: Any, **kwargs: Any) -> Any:
            found = super()._find_run_root(run_uuid, *args, **kwargs)
            if found[1] is not None:
                return found
            made = self.create_run(_get_experiment_id(), "", int(time.time() * 1000), [], None).info.run_id
            place = Path(super()._find_run_root(made)[1])
            notes = place / self.META_DATA_FILE_NAME
            notes.write_text(notes.read_text().replace(made, run_uuid))
            place.rename(place.with_name(run_uuid))
            return super()._find_run_root(run_uuid, *args, **kwargs)

    return Runs(folder)


@contextlib.contextmanager
def _allowing_files() -> Any:
    """Allow MLflow's stores of files, which it advises against."""
    from mlflow.environment_variables import MLFLOW_ALLOW_FILE_STORE

    name = MLFLOW_ALLOW_FILE_STORE.name
    before = os.environ.get(name)
    os.environ[name] = "true"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


class _Calls:
    """The calls of `TrackingServiceClient`, with their results and signatures: what each tells the run."""

    def __init__(self, capture: Capture) -> None:
        self._capture, self._runs = capture, OpenRuns(capture, _NAME)
        # The name of each model that was logged, and the run that it belongs to.
        self._models: dict[str, tuple[str, str]] = {}

    def create_run(
        self,
        run: Any,
        service: Any,
        experiment_id: Any,
        start_time: Any = None,
        tags: Mapping[str, Any] | None = None,
        run_name: str | None = None,
    ) -> None:
        tags = tags or {}
        experiment = service.get_experiment(experiment_id).name
        project = None if experiment == "Default" else experiment
        name = run_name or tags.get(_TITLE) or ""
        self._runs.begin(run.info.run_id, name, parent=tags.get(_PARENT), project=project)
        self._take_tags(run.info.run_id, tags)

    def log_metric(
        self,
        _: Any,
        __: Any,
        run_id: str,
        key: str,
        value: Any,
        timestamp: Any = None,
        step: Any = None,
        *___: Any,
        **____: Any,
    ) -> None:
        self._log(run_id, [(key, value, step)], "log_metric")

    def log_batch(
        self,
        _: Any,
        __: Any,
        run_id: str,
        metrics: Iterable[Any] = (),
        params: Iterable[Any] = (),
        tags: Iterable[Any] = (),
        synchronous: bool = True,
    ) -> None:
        self._log(run_id, [(metric.key, metric.value, metric.step) for metric in metrics], "log_batch")
        self._take_params(run_id, {param.key: param.value for param in params}, "log_batch")
        self._take_tags(run_id, {tag.key: tag.value for tag in tags})

    def log_param(self, _: Any, __: Any, run_id: str, key: str, value: Any, *___: Any, **____: Any) -> None:
        self._take_params(run_id, {key: value}, "log_param")

    def set_tag(self, _: Any, __: Any, run_id: str, key: str, value: Any, *___: Any, **____: Any) -> None:
        self._take_tags(run_id, {key: value})

    def update_run(self, _: Any, __: Any, run_id: str, status: Any = None, name: str | None = None) -> None:
        self._take_tags(run_id, {_TITLE: name})

    def log_artifact(self, _: Any, __: Any, run_id: str, local_path: Any, artifact_path: str | None = None) -> None:
        path = Path(local_path)
        name = f"{artifact_path}/{path.name}" if artifact_path else path.name
        (self._take_files if path.is_dir() else self._take_file)(run_id, path, name, "log_artifact")

    def log_artifacts(self, _: Any, __: Any, run_id: str, local_dir: Any, artifact_path: str | None = None) -> None:
        self._take_files(run_id, Path(local_dir), artifact_path or "", "log_artifacts")

    def create_logged_model(
        self, model: Any, _: Any, experiment_id: Any, name: Any = None, source_run_id: Any = None, *__: Any, **___: Any
    ) -> None:
        if source_run_id is not None:
            self._models[model.model_id] = (source_run_id, f"models/{model.name}")

    def log_model_artifacts(
        self, _: Any, __: Any, model_id: str, local_dir: Any, artifact_path: str | None = None
    ) -> None:
        if model_id in self._models:
            run_id, name = self._models[model_id]
            self._take_files(run_id, Path(local_dir), f"{name}/{artifact_path}" if artifact_path else name, "log_model")

    def set_terminated(self, _: Any, __: Any, run_id: str, status: Any = None, end_time: Any = None) -> None:
        self._runs.end(run_id, int(status in ("FAILED", "KILLED")))

    # ------------------------------------------------------------------ what they have in common

    def _log(self, run_id: str, points: Iterable[tuple[str, Any, Any]], call: str) -> None:
        if (part := self._runs.part(run_id)) is not None:
            for name, value, step in points:
                self._capture.log({part.of(name): value}, step, library=_NAME, call=call)

    def _take_params(self, run_id: str, params: Mapping[str, Any], call: str) -> None:
        part = self._runs.part(run_id)
        if part is not None and params:
            settings = {name: parse_value(str(value)) for name, value in params.items()}
            self._capture.config(part.nested(settings), library=_NAME, call=call)

    def _take_tags(self, run_id: str, tags: Mapping[str, Any]) -> None:
        part = self._runs.part(run_id)
        if part is None or self._capture.run is None:
            return
        record = self._runs.record(run_id)
        for tag, fact in ((_NOTE, "note"), (_TITLE, "display_name")):
            if tags.get(tag) and record is not None:
                record.describe(**{fact: str(tags[tag])})
        own = {part.of(name): str(value) for name, value in tags.items() if not name.startswith(_OWN)}
        if own:
            self._capture.run.info.setdefault(_NAME, {}).setdefault("tags", {}).update(own)

    def _take_files(self, run_id: str, folder: Path, name: str, call: str) -> None:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            inner = path.relative_to(folder).as_posix()
            self._take_file(run_id, path, f"{name}/{inner}" if name else inner, call)

    def _take_file(self, run_id: str, path: Path, name: str, call: str) -> None:
        part = self._runs.part(run_id)
        if part is not None:
            self._capture.artifact(path, part.of(name), library=_NAME, call=call)
