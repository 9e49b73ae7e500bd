"""Offline tasks of ClearML: ZIP files of `Task.set_offline(True)`, or the folders of tasks that were not closed.

Such files do not record how a task ended. ClearML itself writes 0 instead of NaN and infinities.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.media_files import MediaEntry
from sacristan.observers.record.other_trackers import parse_value
from sacristan.runs.errors import ForeignError
from sacristan.runs.transfer.trackers.foreign_run import ForeignRun, Found, Points, png_content, set_nested
from sacristan.runs.transfer.trackers.source_files import RunFiles, open_run_files, run_files_below

KIND = "clearml"
_TASK, _METRICS, _LOG = "task.json", "metrics.jsonl", "log.jsonl"
# The iteration of a single value.
_NO_STEP = -(2**31)
# The metrics of the machine.
_MONITOR = ":monitor:"


def recognizes(path: Path) -> bool:
    """Tell whether this is an offline task, or a folder with one."""
    return any(is_task for _, is_task in run_files_below(path, _METRICS) if is_task)


def find(path: Path) -> Iterator[Found]:
    """Yield each task, in the order of their paths; of a task with a folder and a ZIP file, only the latter."""
    for file, _ in run_files_below(path, _METRICS):
        if file.is_dir() and file != path and file.with_name(f"{file.name}.zip").is_file():
            continue
        with tempfile.TemporaryDirectory(prefix="clearml-") as copies:
            yield Found(file.name.removesuffix(".zip"), str(file), partial(_read, file, Path(copies)))


def _read(path: Path, copies: Path) -> ForeignRun:
    with open_run_files(path, copies) as run_files:
        return _RunReader(run_files, copies).read()


class _RunReader:
    def __init__(self, run_files: RunFiles, copies: Path) -> None:
        self._run_files, self._copies = run_files, copies
        self._run = ForeignRun(experiment="clearml")
        self._points = Points()
        self._summary: dict[str, float] = {}
        self._num_unknown: Counter[str] = Counter()
        self._times = [math.inf, -math.inf]

    def read(self) -> ForeignRun:
        run = self._run
        self._take_task()
        self._take_files()
        for event in self._events(_METRICS):
            self._take(event)
        run.output = "".join(f"{event.get('msg', '')}\n" for event in self._events(_LOG)).encode()
        run.curves = self._points.curves()
        if self._times[0] < math.inf:
            run.started, run.stopped = self._times
        if self._summary:
            run.info["summary"] = self._summary
        run.left_out += [f"{count} events {which}" for which, count in self._num_unknown.items()]
        return run

    def _events(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a file, each line of which is a list of them."""
        if name not in self._run_files.names:
            self._run.left_out.append(f"{name}: it is missing")
            return
        for line in self._run_files.objects(name, self._run.left_out):
            for event in line or ():
                if not isinstance(event, dict):
                    self._num_unknown["that are no objects"] += 1
                    continue
                if isinstance(time := event.get("timestamp"), int | float):
                    self._times = [min(self._times[0], time / 1000), max(self._times[1], time / 1000)]
                yield event

    def _take_task(self) -> None:
        run = self._run
        try:
            task = parse_json(self._run_files.file(_TASK).read_bytes())
            run.experiment, run.title = str(task.get("project_name") or run.experiment), str(task.get("name") or "")
            run.tags, run.note = sorted(task.get("tags") or ()), str(task.get("comment") or "")
            for section, entries in (task.get("hyperparams") or {}).items():
                for name, entry in entries.items():
                    set_nested(run.config.setdefault(section, {}), name, "/", _value(entry))
            parts = {name: task.get(name) for name in ("id", "type", "configuration", "script", "models")}
            run.info["clearml"] = {name: part for name, part in parts.items() if part}
            entry_point = (task.get("script") or {}).get("entry_point")
            run.command = [entry_point] if entry_point else []
        except (ForeignError, ValueError, AttributeError, TypeError) as error:
            run.left_out.append(f"{_TASK}: {error}")

    def _take(self, event: dict[str, Any]) -> None:
        kind = str(event.get("type"))
        try:
            if kind == "training_stats_scalar":
                self._take_scalar(event)
            elif kind == "plot":
                self._take_plot(event)
            elif kind == "training_debug_image":
                self._take_image(event)
            else:
                self._num_unknown[f"of the type {kind!r}"] += 1
        except (KeyError, TypeError, ValueError):
            self._num_unknown[f"of the type {kind!r} that lack an entry"] += 1

    def _take_scalar(self, event: dict[str, Any]) -> None:
        name, value = f"{event['metric']}/{event['variant']}", float(event["value"])
        if event["iter"] == _NO_STEP:
            self._summary[event["variant"]] = value
        else:
            name = f"system/{name[len(_MONITOR) :]}" if name.startswith(_MONITOR) else name
            self._points.add(name, event["iter"], value, event["timestamp"] / 1000, origin=event["metric"])

    # ------------------------------------------------------------------ files

    def _take_plot(self, event: dict[str, Any]) -> None:
        """Keep a plot as a file in Plotly's JSON."""
        name, text = f"plots/{event['metric']}/{event['variant']}_{event['iter']}.json", event["plot_str"].encode()
        path = self._copies / f"plot-{len(self._run.artifacts)}"
        path.write_bytes(text)
        os.utime(path, ns=(zlib.crc32(text),) * 2)  # later imports compare sizes and times of change
        self._run.artifacts[name] = path

    def _take_image(self, event: dict[str, Any]) -> None:
        """Make a medium of an image in PNG; others stay files."""
        name = next((name for name in self._run.artifacts if event["key"].endswith(f"/{name}")), None)
        if name is None:
            self._num_unknown[f"of images, one at {event.get('url')}, that are not among the files"] += 1
            return
        data = self._run.artifacts[name].read_bytes()
        with contextlib.suppress(ValueError):
            content = png_content(data)
            label = f"{event['metric']}/{event['variant']}"
            self._run.media.append(MediaEntry(label, "image", event["iter"], event["timestamp"] / 1000, content))
            del self._run.artifacts[name]

    def _take_files(self) -> None:
        for name in self._run_files.names:
            if not name.startswith("data/") or name.endswith("/"):
                continue
            label = re.sub(r"^data/(.*/)?[^/]*\.offline-\w+/(artifacts/)?", "", name)
            try:
                self._run.artifacts[label] = self._run_files.file(name)
            except ForeignError as error:
                self._run.left_out.append(f"file {error}")


def _value(entry: dict[str, Any]) -> Any:
    """Return the value of a parameter, whose text has a type."""
    text, kind = entry.get("value"), entry.get("type")
    if kind == "str" or not isinstance(text, str):
        return text
    if kind is None:
        return text or None
    try:
        return json.loads(text)
    except ValueError:
        return parse_value(text)
