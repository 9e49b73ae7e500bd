"""Runs in TensorBoard's event files.

A folder with event files is a run. Files in a folder below it belong to the same run if the same process wrote them, as
`SummaryWriter.add_hparams` and `add_scalars` do: hyperparameters become the config.

The extra `tensorboard` reads the files. TensorBoard keeps a sample of the points unless it is told to keep all.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from observers.media.kinds import Text
from observers.record.media_files import Content, MediaEntry
from runs.errors import ForeignError, MissingExtraError
from runs.transfer.trackers.foreign_run import UNKNOWN, Curve, ForeignRun, Found, as_steps
from runs.transfer.trackers.media_contents import histogram_content, png_content
from runs.transfer.trackers.source_files import is_inside

__all__ = ["KIND", "find", "recognizes"]

KIND = "tensorboard"
_FILE = re.compile(r".*tfevents\.(?P<time>\d+)\.(?P<process>.+?)(\.\d+)?(\.v2)?$")
# Keep every event; of graphs and compressed histograms, which are not read, as little as possible.
_ALL = {"scalars": 0, "images": 0, "audio": 0, "histograms": 0, "tensors": 0, "compressedHistograms": 1, "graph": 1}
# How a session of hyperparameters ended, by its number in the protocol of the plugin.
_STATUSES = {1: "COMPLETED", 2: "FAILED"}


class _Part(NamedTuple):
    """The event files of one folder.

    Attributes:
        name: Path of the folder below that of the run; empty for the run's own.
        folder: The folder.
        files: Its event files, oldest first.
    """

    name: str
    folder: Path
    files: list[Path]


def recognizes(path: Path) -> bool:
    """Tell whether there are event files."""
    return next(_folders(path), None) is not None


def find(path: Path) -> Iterator[Found]:
    """Yield a run for each folder with event files."""
    runs: list[list[_Part]] = []
    for folder, files in _folders(path):
        runs_above = (run for run in runs if run[0].folder in folder.parents and _is_same_process(run[0].files, files))
        run = next(runs_above, None)
        if run is None:
            runs.append([_Part("", folder, files)])
        else:
            run.append(_Part(folder.relative_to(run[0].folder).as_posix(), folder, files))
    for run in sorted(runs, key=lambda run: _times(run[0].files[0])):
        yield Found(run[0].files[0].name, str(run[0].folder), lambda run=run: _read(path, run))  # type: ignore[misc]


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


def _is_same_process(files: list[Path], others: list[Path]) -> bool:
    one, other = (_FILE.fullmatch(each[0].name) for each in (files, others))
    return one is not None and other is not None and one["process"] == other["process"]


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
    """The events of one folder, on their way into a run.

    Args:
        run: The run to extend.
        part: The folder.
    """

    def __init__(self, run: ForeignRun, part: _Part) -> None:
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError as error:
            raise MissingExtraError(
                "event files need the package 'tensorboard', which is not installed; "
                "install it with: pip install 'sacristan[tensorboard]'"
            ) from error
        self.run = run
        self.files = part.files
        self.events = EventAccumulator(str(part.folder if len(part.files) > 1 else part.files[0]), size_guidance=_ALL)
        self.prefix = f"{part.name}/" if part.name else ""
        self.times: list[float] = []

    def read(self) -> list[float]:
        """Extend the run; return the times of the events, in seconds since 1970."""
        try:
            self.events.Reload()
        except Exception as error:  # the parser raises what it meets
            raise ForeignError(f"{self.files[0].parent}: {type(error).__name__}: {error}") from error
        for path in self.files:
            if num_bytes := _num_torn_bytes(path):
                self.run.left_out.append(f"{path.name}: its last {num_bytes} bytes are no whole event")
        hparams = self.events.PluginTagToContent("hparams") if "hparams" in self._plugins() else {}
        if hparams:
            self.prefix = ""  # the metrics of add_hparams are the run's own
            self._take_hparams(hparams)
        tags = self.events.Tags()
        for name in tags["scalars"]:
            self._take_curve(name, self.events.Scalars(name), lambda event: event.value)
        for name in tags["images"]:
            self._take_media(name, "image", self.events.Images(name), _image)
        for name in tags["audio"]:
            self._take_media(name, "audio", self.events.Audio(name), _audio)
        for name in tags["histograms"]:
            self._take_media(name, "histogram", self.events.Histograms(name), _histogram)
        for name in tags["tensors"]:
            self._take_tensors(name)
        first = self.events._first_event_timestamp  # FirstEventTimestamp() waits for an event
        return [*self.times, *([] if first is None else [first])]

    def _plugins(self) -> set[str]:
        return {data.plugin_data.plugin_name for data in self.events.summary_metadata.values()}

    def _take_hparams(self, contents: dict[str, bytes]) -> None:
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        for content in contents.values():
            data = HParamsPluginData.FromString(content)
            for name, value in data.session_start_info.hparams.items():
                kind = value.WhichOneof("kind")
                self.run.config[name] = None if kind is None else getattr(value, kind)
            if data.HasField("session_end_info"):
                self.run.status = _STATUSES.get(data.session_end_info.status, UNKNOWN)

    def _take_curve(self, name: str, events: list[Any], value: Callable[[Any], float]) -> None:
        self.times += [event.wall_time for event in events]
        self.run.curves.append(
            Curve(
                self.prefix + name,
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
        """Take what newer writers store as tensors, whose plugin says what they mean."""
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
        else:
            self.run.left_out.append(f"{name!r}: data of the plugin {plugin or 'of an unknown name'}")


def _image(event: Any) -> Content:
    return png_content(event.encoded_image_string)


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
    return Text("\n".join(_decoded(item) for item in array.reshape(-1).tolist())).encode()


def _decoded(item: Any) -> str:
    return item.decode(errors="replace") if isinstance(item, bytes) else str(item)


def _num_torn_bytes(path: Path) -> int:
    """Return the number of bytes after the last whole record, which a killed writer leaves.

    Source: https://www.tensorflow.org/tutorials/load_data/tfrecord (TFRecords format details)
    """
    size, at = path.stat().st_size, 0
    with path.open("rb") as stream:
        while len(head := stream.read(12)) == 12:
            end = at + 16 + int.from_bytes(head[:8], "little")
            if end > size:
                break
            at = end
            stream.seek(at)
    return size - at
