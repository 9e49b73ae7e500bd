"""Runs in TensorBoard's event files.

A folder with event files is a run. Files in a folder below it belong to the same run if the same writer wrote them, as
`SummaryWriter.add_scalars` and `add_hparams` do: hyperparameters become the config. If a writer added hyperparameters
more than once, each time was a trial, and becomes a separate run.

The extra `tensorboard` interprets the events. TensorBoard samples the points unless it is set to keep all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from sacristan.observers.media.kinds import Text
from sacristan.observers.record.media_files import Content, MediaEntry
from sacristan.runs.errors import ForeignError, needing_extra
from sacristan.runs.transfer.trackers.foreign_run import (
    UNKNOWN,
    Curve,
    ForeignRun,
    Found,
    as_steps,
    as_whole,
    histogram_content,
    png_content,
    take_export,
)
from sacristan.runs.transfer.trackers.source_files import damage_texts, is_inside

KIND = "tensorboard"
_FILE = re.compile(r".*tfevents\.(?P<time>\d+)\.(?P<process>.+?)(\.\d+)?(\.v2)?$")
# Keep every event; of graphs and compressed histograms, which are not read, as little as possible.
_ALL = {"scalars": 0, "images": 0, "audio": 0, "histograms": 0, "tensors": 0, "compressedHistograms": 1, "graph": 1}
# How a session of hyperparameters ended, by its number in the protocol of the plugin.
_STATUSES = {1: "COMPLETED", 2: "FAILED"}
# Tags of the plugin for hyperparameters, and that with which a trial begins.
_HPARAMS, _TRIAL = "_hparams_/", "_hparams_/session_start_info"

_needing_tensorboard = partial(needing_extra, "tensorboard", "importing event files")


class _Part(NamedTuple):
    """The event files of one folder, oldest first; `name` is its path below the run's folder."""

    name: str
    folder: Path
    files: list[Path]

    def below(self, above: _Part) -> _Part:
        return self._replace(name=self.folder.relative_to(above.folder).as_posix())


def recognizes(path: Path) -> bool:
    """Tell whether there are event files."""
    return next(_folders(path), None) is not None


def find(path: Path) -> Iterator[Found]:
    """Yield a run for each folder with event files, and for each trial of a writer of several."""
    writers: list[list[_Part]] = []
    for folder, files in _folders(path):
        part = _Part("", folder, files)
        above = next((each for each in reversed(writers) if _is_of_writer(each[0], part)), None)
        if above is None:
            writers.append([part])
        else:
            above.append(part.below(above[0]))
    runs = [run for writer in writers for run in _runs_of(writer)]
    for run in sorted(runs, key=lambda run: _times(run[0].files[0])):
        first = run[0].files[0]
        yield Found(_identity(first), str(run[0].folder), partial(_read, path, run), by_place=True, former=first.name)


def _folders(path: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yield each folder with event files, parents first, and its files, oldest first."""
    if path.is_file():
        if _FILE.fullmatch(path.name):
            yield path.parent, [path]
        return
    for where, folders, names in os.walk(path):
        folders.sort()
        named = (Path(where, name) for name in names if _FILE.fullmatch(name))
        if files := [file for file in named if is_inside(path, file)]:
            yield Path(where), sorted(files, key=_times)


def _times(path: Path) -> tuple[int, str]:
    match = _FILE.fullmatch(path.name)
    return (int(match["time"]) if match else 0, path.name)


def _is_of_writer(above: _Part, part: _Part) -> bool:
    """Tell whether the writer of a folder made another one below it, which is not a copy of its own."""
    if above.folder not in part.folder.parents or _identity(above.files[0]) == _identity(part.files[0]):
        return False
    one, other = (_FILE.fullmatch(each.files[0].name) for each in (above, part))
    if one is None or other is None or one["process"] != other["process"]:
        return False
    # tensorboardX names the machine alone, without the process.
    return re.search(r"\.\d+$", one["process"]) is not None or _is_trial(part) or _is_group(part.below(above))


def _is_trial(part: _Part) -> bool:
    return any(tag == _TRIAL for tag in _tags(part))


def _is_group(part: _Part) -> bool:
    """Tell whether a folder is one of `add_scalars`, named after the metric in it."""
    tag = next(_tags(part), None)
    return tag is not None and part.name.replace("/", "_").startswith(tag.replace("/", "_") + "_")


def _runs_of(writer: list[_Part]) -> Iterator[list[_Part]]:
    """Yield the runs of a writer: one if it has at most one trial; else its own part, and each trial."""
    root, *others = writer
    trials = [part for part in others if _is_trial(part)] if others else []
    if not trials or (len(trials) == 1 and not _is_trial(root)):
        yield [root, *(part for part in others if part not in trials), *trials]
        return
    runs = {part.folder: [part._replace(name="")] for part in trials}
    own = [root]
    for part in others:
        above = next((folder for folder in part.folder.parents if folder in runs), None)
        if above is not None and part not in trials:
            runs[above].append(part.below(runs[above][0]))
        elif part not in trials:
            own.append(part)
    if len(own) > 1 or any(not tag.startswith(_HPARAMS) or tag == _TRIAL for tag in _tags(root)):
        yield own
    yield from runs.values()


def _tags(part: _Part) -> Iterator[str]:
    """Yield the tag of each value in a folder, as far as it can be read."""
    event_type = _event_type()
    for file in part.files:
        for data in _peeked(file):
            with contextlib.suppress(Exception):  # protobuf raises what it meets
                yield from [value.tag for value in event_type.FromString(data).summary.value]


def _identity(path: Path) -> str:
    """Return what identifies an event file and its copies: its name, and the time when it was begun."""
    records = _peeked(path)
    first = next(records, b"")
    # Some writers round the time to seconds, and two of them may have one name.
    is_exact = first[:1] == b"\t" and len(first) >= 9 and not struct.unpack_from("<d", first, 1)[0].is_integer()
    begin = first if is_exact or not first else first + next(records, b"")
    return f"{path.name}/{hashlib.sha256(begin).hexdigest()[:16]}"


def _peeked(path: Path) -> Iterator[bytes]:
    """Yield the whole records of a file; reading the run reports a file that cannot be read."""
    with contextlib.suppress(OSError):
        yield from _records(path, [])


def _records(path: Path, damages: list[tuple[int, int]]) -> Iterator[bytes]:
    with _needing_tensorboard():
        from sacristan.observers.tensorboard.event_file import whole_records
    return whole_records(path, damages)


def _event_type() -> Any:
    with _needing_tensorboard():
        from tensorboard.compat.proto.event_pb2 import Event
    return Event


def _read(root: Path, parts: list[_Part]) -> ForeignRun:
    folder = parts[0].folder
    title = folder.relative_to(root).as_posix() if folder != root and root in folder.parents else folder.name
    run = ForeignRun(experiment=root.name or "tensorboard", title=title)
    times: list[float] = []
    for part in parts:
        times += _Events(run, part).read()
    if not times:
        raise ForeignError("its event files hold no whole event")
    run.started, run.stopped = min(times), max(times)
    run.config |= _hparams_file(folder, run.left_out)
    take_export(run, folder)
    if isinstance(run.result, int | float):  # which the export has added to the curve of that name
        shortened = (curve.without_last() if curve.name == "result" else curve for curve in run.curves)
        run.curves = [curve for curve in shortened if len(curve) or curve.name != "result"]
    return run


def _hparams_file(folder: Path, left_out: list[str]) -> dict[str, Any]:
    """Return the content of `hparams.yaml`, which Lightning writes beside its event files."""
    try:
        content = yaml.safe_load((folder / "hparams.yaml").read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        left_out.append(f"hparams.yaml: {' '.join(str(error).split())}")
        return {}
    return content if isinstance(content, dict) else {}


class _Events:
    """The events of one folder, to be read into a run."""

    def __init__(self, run: ForeignRun, part: _Part) -> None:
        with _needing_tensorboard():
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        self.run = run
        self.files = part.files
        self.events = EventAccumulator(str(part.files[0]), size_guidance=_ALL)
        self.events.file_version = 2.0  # also where the event that says so is damaged
        self.prefix = f"{part.name}/" if part.name else ""
        self.times: list[float] = []
        self.trials: list[Any] = []

    def read(self) -> list[float]:
        """Extend the run; return the times of the events, in seconds since 1970."""
        for path in self.files:
            self._load(path)
        if self.trials:
            self._take_trials()
        tags = self.events.Tags()
        for name in tags["scalars"]:
            self._take_curve(name, self.events.Scalars(name), lambda event: event.value)
        for name in tags["images"]:
            self._take_media(
                name, "image", self.events.Images(name), lambda event: png_content(event.encoded_image_string)
            )
        for name in tags["audio"]:
            self._take_media(name, "audio", self.events.Audio(name), _audio)
        for name in tags["histograms"]:
            self._take_media(name, "histogram", self.events.Histograms(name), _histogram)
        for name in tags["tensors"]:
            self._take_tensors(name)
        first = self.events._first_event_timestamp  # FirstEventTimestamp() waits for an event
        return [*self.times, *([] if first is None else [first])]

    def _load(self, path: Path) -> None:
        """Load the intact events of a file, and report the others."""
        event_type, num_bad, size = _event_type(), 0, path.stat().st_size
        damages: list[tuple[int, int]] = []
        for data in _records(path, damages):
            try:
                event = event_type.FromString(data)
                self.events._ProcessEvent(event)  # Reload() ends at the first damage, without a word
            except Exception:  # protobuf and TensorBoard raise what they meet
                num_bad += 1
                continue
            self.trials += [value for value in event.summary.value if value.tag.startswith(_HPARAMS)]
        self.run.left_out += damage_texts(path, damages, size, "event")
        if num_bad:
            self.run.left_out.append(f"{path.name}: {num_bad} events that are none of TensorBoard's")

    def _take_trials(self) -> None:
        """Take hyperparameters: the first of several sessions in a folder, which TensorBoard cannot tell apart."""
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        contents = [HParamsPluginData.FromString(value.metadata.plugin_data.content) for value in self.trials]
        starts = [data.session_start_info for data in contents if data.HasField("session_start_info")]
        if starts:
            self.prefix = ""  # the metrics of add_hparams are the run's own
        for name, value in starts[0].hparams.items() if starts else ():
            kind = value.WhichOneof("kind")
            self.run.config[name] = None if kind is None else as_whole(getattr(value, kind))
        if further := sum(start.hparams != starts[0].hparams for start in starts[1:]):
            self.run.left_out.append(f"the hyperparameters of {further} further trials in the same folder")
        for data in contents:
            if data.HasField("session_end_info"):
                self.run.status = _STATUSES.get(data.session_end_info.status, UNKNOWN)

    def _take_curve(self, name: str, events: list[Any], value: Callable[[Any], float]) -> None:
        self.times += [event.wall_time for event in events]
        name = self.prefix + name
        if any(curve.name == name for curve in self.run.curves):
            name = f"hparams/{name}"  # of add_hparams, which repeats the name of a curve
        self.run.curves.append(
            Curve(
                name,
                as_steps([event.step for event in events]),
                np.array([value(event) for event in events], np.float64),
                np.array([event.wall_time for event in events], np.float64),
            )
        )

    def _take_media(self, name: str, kind: str, events: list[Any], encode: Callable[[Any], Content]) -> None:
        self.times += [event.wall_time for event in events]
        for event in events:
            try:
                content = encode(event)
            except (ValueError, TypeError, IndexError, struct.error) as error:
                self.run.left_out.append(f"{kind} {name!r} of step {event.step}: {error}")
            else:
                self.run.media.append(MediaEntry(self.prefix + name, kind, event.step, event.wall_time, content))

    def _take_tensors(self, name: str) -> None:
        """Take what newer writers store as tensors; their plugin defines the meaning."""
        from tensorboard.util.tensor_util import make_ndarray

        plugin = self.events.SummaryMetadata(name).plugin_data.plugin_name
        events = self.events.Tensors(name)
        if plugin == "scalars":
            self._take_curve(name, events, lambda event: float(make_ndarray(event.tensor_proto).reshape(())))
        elif plugin == "text":
            name = name.removesuffix("/text_summary")
            self._take_media(name, "text", events, lambda event: _text(make_ndarray(event.tensor_proto)))
        elif plugin == "histograms":
            self._take_media(name, "histogram", events, lambda event: _binned(make_ndarray(event.tensor_proto)))
        elif plugin == "images":
            self._take_media(name, "image", events, lambda event: png_content(make_ndarray(event.tensor_proto)[2]))
        elif plugin != "hparams":  # which are the config
            self.run.left_out.append(f"{name!r}: data of the plugin {plugin or 'of an unknown name'}")


def _audio(event: Any) -> Content:
    data = event.encoded_audio_string
    if data[:4] != b"RIFF":
        raise ValueError(f"got data of type {event.content_type!r}, expected WAV")
    return Content(data, ".wav", "audio/wav", {"sample_rate": int(event.sample_rate)})


def _histogram(event: Any) -> Content:
    value = event.histogram_value
    limits, counts = np.array(value.bucket_limit, np.float64), np.array(value.bucket, np.float64)
    if not len(limits):
        raise ValueError("it has no bins")
    # Writers close the range with bins up to the greatest floats; the values themselves have bounds.
    edges = np.clip(np.concatenate([[min(value.min, limits[0])], limits]), value.min, value.max)
    kept = counts > 0 if counts.any() else np.ones(len(counts), bool)
    kept |= np.diff(edges) > 0
    return histogram_content(counts[kept], np.concatenate([edges[:1], edges[1:][kept]]))


def _binned(array: np.ndarray) -> Content:
    """Convert a histogram of rows (left, right, count)."""
    if array.ndim != 2 or array.shape[1] != 3 or not len(array):
        raise ValueError(f"got an array of shape {array.shape}, expected (bins, 3)")
    rows = array.astype(np.float64)
    return histogram_content(rows[:, 2], np.concatenate([rows[:1, 0], rows[:, 1]]))


def _text(array: np.ndarray) -> Content:
    items = array.reshape(-1).tolist()
    return Text(
        "\n".join(item.decode(errors="replace") if isinstance(item, bytes) else str(item) for item in items)
    ).encode()
