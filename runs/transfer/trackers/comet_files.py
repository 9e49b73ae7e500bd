"""Offline experiments of Comet: ZIP files of `comet_ml.OfflineExperiment`, or folders with their content.

Each line of `messages.json` is a message, as the experiment sent it. An experiment whose process was killed leaves an
empty ZIP file.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.observers.record.files import relative_path
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.media_files import Content, MediaEntry
from sacristan.runs.errors import ForeignError
from sacristan.runs.transfer.trackers.foreign_run import ForeignRun, Found, Points, png_content, set_nested
from sacristan.runs.transfer.trackers.source_files import RunFiles, open_run_files, run_files_below

KIND = "comet"
_EXPERIMENT, _MESSAGES = "experiment.json", "messages.json"
# Messages that are kept as they are.
_KEPT = {"installed_packages", "os_packages", "cloud_details", "gpu_static_info", "git_metadata", "register_model"}
# Parameters and other entries that the package adds on its own.
_OWN_PARAMETERS = {"curr_step", "curr_epoch"}
_OWN_OTHERS = {"offline_experiment", "hasNestedParams"}
# How the text about an exception of the user's script begins; other texts are about Comet's own.
_EXCEPTION = "Unexpected error detected in the user script: "


def recognizes(path: Path) -> bool:
    """Tell whether this is an offline experiment, or a folder with one."""
    return any(is_experiment for _, is_experiment in run_files_below(path, _MESSAGES))


def find(path: Path) -> Iterator[Found]:
    """Yield each experiment, in the order of their paths."""
    for file, _ in run_files_below(path, _MESSAGES):
        with tempfile.TemporaryDirectory(prefix="comet-") as copies:
            yield Found(_key(file, Path(copies)), str(file), partial(_read, file, Path(copies)))


def _key(path: Path, copies: Path) -> str:
    try:
        with open_run_files(path, copies) as run_files:
            return str(_experiment(run_files)["offline_id"])
    except (ForeignError, OSError, KeyError):
        return path.stem


def _experiment(run_files: RunFiles) -> dict[str, Any]:
    """Return what the experiment recorded at its end; nothing if it recorded none."""
    if _EXPERIMENT not in run_files.names:
        return {}
    try:
        content = parse_json(run_files.file(_EXPERIMENT).read_bytes())
    except ValueError as error:
        raise ForeignError(f"{_EXPERIMENT}: it is no JSON ({error})") from error
    if not isinstance(content, dict):
        raise ForeignError(f"{_EXPERIMENT}: got {type(content).__name__}, expected an object")
    return content


def _read(path: Path, copies: Path) -> ForeignRun:
    with open_run_files(path, copies) as run_files:
        if not run_files.names:
            raise ForeignError("it is empty: the process was killed before Comet wrote it")
        return _RunReader(run_files).read()


class _RunReader:
    def __init__(self, run_files: RunFiles) -> None:
        self._run_files = run_files
        self._run = ForeignRun(experiment="comet", status="DEAD")
        self._comet: dict[str, Any] = {}
        self._points = Points()
        self._output: list[str] = []
        self._others: dict[str, Any] = {}
        self._num_texts: Counter[str] = Counter()
        self._num_unknown: Counter[str] = Counter()

    def read(self) -> ForeignRun:
        run = self._run
        self._start_from(_experiment(self._run_files))
        for message in self._run_files.objects(_MESSAGES, run.left_out):
            if message:
                self._take(message if isinstance(message, dict) else {})
        run.curves = self._points.curves()
        run.output = "".join(self._output).encode()
        run.info = {"comet": {**self._comet, **({"other": self._others} if self._others else {})}}
        run.left_out += [f"{count} values of {name!r} are no numbers" for name, count in self._num_texts.items()]
        run.left_out += [f"{count} messages {which}" for which, count in self._num_unknown.items()]
        return run

    def _start_from(self, experiment: dict[str, Any]) -> None:
        run = self._run
        if not experiment:
            run.left_out.append(f"{_EXPERIMENT}, which Comet writes at the end: it is missing")
            return
        message = str(experiment.get("customer_error_message") or "")
        run.status = "COMPLETED"
        if message.startswith(_EXCEPTION):
            run.status = "INTERRUPTED" if message.startswith(f"{_EXCEPTION}KeyboardInterrupt(") else "FAILED"
        run.experiment = experiment.get("project_name") or run.experiment
        run.started, run.stopped = _seconds(experiment["start_time"]), _seconds(experiment["stop_time"])
        run.tags = sorted(experiment.get("tags") or ())
        kept = {"id": experiment.get("offline_id"), "workspace": experiment.get("workspace"), "error": message}
        self._comet = {name: value for name, value in kept.items() if value}

    def _take(self, message: Any) -> None:
        kind, payload = message.get("type"), message.get("payload")
        take = getattr(self, f"_take_{kind}", None)
        try:
            if kind in _KEPT:
                self._comet[kind] = {name: value for name, value in payload.items() if name != "message_id"}
            elif take is not None:
                take(payload)
            else:
                self._num_unknown[f"of the type {kind!r}"] += 1
        except (AttributeError, KeyError, TypeError, ValueError):
            self._num_unknown[f"of the type {kind!r} that lack an entry"] += 1

    def _take_metric_msg(self, payload: dict[str, Any]) -> None:
        metric = payload["metric"]
        name, context = metric["metricName"], payload.get("context")
        origin = f"{context} {name}"
        name = f"{context}_{name}" if context else name
        name = f"system/{name[4:]}" if name.startswith("sys.") else name
        try:
            value = float(metric["metricValue"])
        except (TypeError, ValueError):
            self._num_texts[name] += 1
        else:
            self._points.add(name, metric.get("step"), value, _seconds(payload["local_timestamp"]), origin)

    def _take_parameter_msg(self, payload: dict[str, Any]) -> None:
        name, value = payload["param"]["paramName"], payload["param"]["paramValue"]
        if name in _OWN_PARAMETERS and payload["param"].get("source") == "auto-logged":
            return
        set_nested(self._run.config, name, "|", value)

    def _take_standard_output(self, payload: dict[str, Any]) -> None:
        self._output.append(payload["output"])

    def _take_log_other(self, payload: dict[str, Any]) -> None:
        if payload["key"] == "Name":
            self._run.title = str(payload["value"])
        elif payload["key"] not in _OWN_OTHERS:
            self._others[payload["key"]] = payload["value"]

    def _take_system_details(self, payload: dict[str, Any]) -> None:
        run = self._run
        run.host = {name: payload[name] for name in ("hostname", "os", "python_version", "user") if payload.get(name)}
        command = payload.get("command") or ()
        run.command = [command] if isinstance(command, str) else [*map(str, command)]

    def _take_html(self, payload: dict[str, Any]) -> None:
        content = Content(payload["html"].encode(), ".html", "text/html; charset=utf-8", {})
        self._run.media.append(MediaEntry("html", "html", 0, np.nan, content))

    def _take_remote_file(self, payload: dict[str, Any]) -> None:
        name = (payload.get("additional_params") or {}).get("fileName")
        self._run.left_out.append(f"file {name!r} is at {payload.get('remote_uri')}, and stays there")

    def _take_file_upload(self, payload: dict[str, Any]) -> None:
        options, kind = payload["additional_params"], payload["upload_type"]
        name = str(options.get("fileName") or options.get("figName") or payload["file_path"])
        try:
            path = self._run_files.file(payload["file_path"])
        except ForeignError as error:
            self._run.left_out.append(f"file {name!r}: {error}")
            return
        medium = _medium(kind, path)
        if medium is not None:
            name = str(options.get("figName") or medium[0])
            step, at = options.get("step") or 0, _seconds(payload["local_timestamp"])
            self._run.media.append(MediaEntry(name, medium[0], step, at, medium[1]))
            return
        group = options.get("groupingName") or ("" if kind == "asset" else kind)
        self._run.artifacts[self._free(f"{group}/{name}" if group else name, options)] = path

    def _free(self, name: str, options: dict[str, Any]) -> str:
        """Return a free name for a file: with its step if the name is taken, and with its id if that is taken, too."""
        path = relative_path(name)
        for mark in ("", f"_{options.get('step')}", f"_{options.get('assetId')}"):
            free = name if path is None else path.with_name(f"{path.stem}{mark}{path.suffix}").as_posix()
            if free not in self._run.artifacts:
                return free
        return free


def _medium(upload_type: str, path: Path) -> tuple[str, Content] | None:
    """Return the kind and content of a text, or of an image in PNG; None for other files."""
    if upload_type == "text-sample":
        return "text", Content(path.read_bytes(), ".txt", "text/plain; charset=utf-8", {})
    if upload_type == "visualization":
        with contextlib.suppress(ValueError):
            return "image", png_content(path.read_bytes())
    return None


def _seconds(milliseconds: float) -> float:
    return milliseconds / 1000
