"""`RunEvents`: the event file of one run. It is loaded when a run starts, as it needs the extra `tensorboard`."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import math
import os
import random
import time
import warnings
import wave
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_STRING, DT_UINT8
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.image import metadata as image_metadata
from tensorboard.plugins.mesh import metadata as mesh_metadata
from tensorboard.plugins.mesh.plugin_data_pb2 import MeshPluginData
from tensorboard.plugins.text import metadata as text_metadata

from sacristan.configs.map import flattened
from sacristan.observers.media.arrays import png_size
from sacristan.observers.media.point_clouds import read_header, read_points
from sacristan.observers.record.files import read_regular
from sacristan.observers.record.media_files import Content, MediaEntry, media_path
from sacristan.observers.record.points.intact_points import read_metrics
from sacristan.observers.record.redaction import hide_passwords
from sacristan.observers.record.schema import MEDIA, read_json_lines
from sacristan.observers.tensorboard.event_file import EventFile

_log = logging.getLogger(__name__)


class RunEvents:
    """Writes points, media and hyper-parameters (the config) to this session's event file, named by the uid."""

    def __init__(self, folder: Path, uid: str, config: Mapping[str, Any], start: datetime) -> None:
        at = start.timestamp()
        self._folder = folder
        self._uid = uid
        # The first one is the start of the run to TensorBoard, which drops nothing.
        start_event = restart_event(LAST_STEP, at)
        self._head = [file_version(at), start_event, session_start(config, at)]
        self._graph: bytes | None = None
        self._kinds: dict[str, str] = {}
        self._last_step = 0
        self._file = EventFile(self._new_path(at))
        self._begin()
        self.flush()

    def _new_path(self, at: float) -> Path:
        """Return a new file that sorts after those of earlier sessions."""
        earlier = len(list(self._folder.glob("*tfevents*")))
        return self._folder / f"events.out.tfevents.{int(at)}.{self._uid}{f'.{earlier}' if earlier else ''}"

    def _begin(self) -> None:
        self._kinds, self._last_step = {}, 0
        for event in self._head:
            self._file.add(event)

    def add_scalars(self, name: str, rows: Iterable[tuple[Any, Any, float]]) -> None:
        """Add numbers with step and time in seconds since 1970. Steps of `system/...` do not place the result."""
        tag = self._tag(name, "scalar")
        for step, value, at in rows:
            event = scalar_event(tag, value, step, at)
            if event is not None:
                self._file.add(event)
                if not tag.startswith("system/"):
                    self._last_step = max(self._last_step, as_step(step))

    def add_result(self, result: float, at: datetime) -> None:
        """Add the result of the run as the metric `result`, at the last step of all metrics."""
        self.add_scalars("result", [(self._last_step, result, at.timestamp())])

    def add_media(self, entries: Iterable[MediaEntry]) -> None:
        """Add the media that TensorBoard can show and whose file could be made."""
        for entry in entries:
            if entry.content is not None:
                for event in media_events(self._tag(entry.name, entry.kind), entry, entry.content):
                    self._file.add(event)

    def _tag(self, name: str, kind: str) -> str:
        """Return the tag of a series. TensorBoard shows one kind per tag, so a second kind gets its own tag."""
        return name if self._kinds.setdefault(name, kind) == kind else f"{name}/{kind}"

    def add_graph(self, model: Any, inputs: Any) -> None:
        """Add the graph of a model; if the model cannot be traced, log a warning instead."""
        try:
            graph = graph_of(model, inputs)
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            _log.warning("the graph of %s cannot be drawn: %s: %s", type(model).__name__, type(error).__name__, reason)
            return
        self._graph = graph_event(graph, time.time())
        self._file.add(self._graph)

    def rewrite(self, record: Path, start: datetime) -> None:
        """Replace all files by a new one with the content of the record, after a rewind."""
        self._file.close()
        earlier, path = list(self._folder.glob("*tfevents*")), self._new_path(time.time())
        temporary = self._folder / "rewinding.tmp"
        temporary.unlink(missing_ok=True)
        self._file = EventFile(temporary)
        self._begin()
        # A running TensorBoard drops all that it has read.
        self._file.add(restart_event(-LAST_STEP, time.time()))
        if self._graph is not None:
            self._file.add(self._graph)
        self._add_recorded(record, start.timestamp())
        self._file.close()
        temporary.rename(path)
        for file in earlier:
            os.truncate(file, 0)  # TensorBoard would not get past a missing one
        self._file = EventFile(path)

    def _add_recorded(self, record: Path, began: float) -> None:
        """Add all points and media of a record."""
        for name, series in read_metrics(record).items():
            times = (series.times + began).tolist()
            self.add_scalars(name, zip(series.steps.tolist(), series.values.tolist(), times, strict=True))
            self.flush()
        for entry in recorded_media(record, began):
            self.add_media([entry])
            self.flush()

    def follow(self, folder: Path) -> None:
        self._folder = folder
        self._file.follow(folder)

    def flush(self) -> None:
        self._file.flush()

    def end(self, at: datetime, *, completed: bool) -> bool:
        """Write the end of the run, and close the file; return whether it has all events."""
        self._file.add(session_end(completed, at.timestamp()))
        return self._file.close()


def recorded_media(folder: Path, start: float) -> Iterator[MediaEntry]:
    """Yield the media of a run in order; raise OSError if a file is missing, RecordError if it leads elsewhere."""
    for row in read_json_lines(folder / MEDIA):
        path = media_path(folder, row["file"])
        images = tuple(_cell_image(media_path(folder, file)) for file in row.get("images", ()))
        content = Content(read_regular(path), path.suffix, row["content_type"], row["meta"], images)
        yield MediaEntry(row["name"], row["kind"], row["step"], start + row["time"], content)


def _cell_image(path: Path) -> Content:
    """Return the image of a table's cell."""
    data = read_regular(path)
    width, height = png_size(data)
    return Content(data, path.suffix, "image/png", {"width": width, "height": height})


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def graph_of(model: Any, inputs: Any) -> bytes:
    """Trace a copy of a model in evaluation mode, and return a GraphDef; random streams are restored."""
    import torch
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    from tensorboard.compat.proto.versions_pb2 import VersionDef
    from torch.utils.tensorboard._pytorch_graph import parse

    # A compiled module holds the original.
    model = copy.deepcopy(getattr(model, "_orig_mod", model)).eval()
    for module in model.modules():
        for name in _HOOKS:
            getattr(module, name).clear()
    values = inputs if isinstance(inputs, tuple | list) else (inputs,)
    copies = tuple(value.detach().clone() if isinstance(value, torch.Tensor) else value for value in values)
    devices = {value.device.index or 0 for value in copies if isinstance(value, torch.Tensor) and value.is_cuda}
    with (
        torch.random.fork_rng(devices=sorted(devices)),
        _kept_streams(),
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        # torch.jit is deprecated since 2.13, but nothing else makes TensorBoard's form of a graph yet.
        warnings.simplefilter("ignore")
        trace = torch.jit.trace(model, copies, check_trace=False)
        graph = trace.graph
        torch._C._jit_pass_inline(graph)
        nodes = parse(graph, trace)
    return GraphDef(node=nodes, versions=VersionDef(producer=22)).SerializeToString()


@contextlib.contextmanager
def _kept_streams() -> Iterator[None]:
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


# ---------------------------------------------------------------------- events as protocol buffers

# The greatest step of TensorBoard.
LAST_STEP = 2**63 - 1
# Larger point clouds are thinned to every second point, every third, and so on.
_MAX_POINTS = 100_000


def file_version(time: float) -> bytes:
    """Return the event that opens an event file."""
    return Event(wall_time=time, file_version="brain.Event:2").SerializeToString()


def scalar_event(tag: str, value: Any, step: Any, time: float) -> bytes | None:
    """Return a point as a 32-bit event, infinite beyond the range of floats; None if it is not a real number."""
    if not isinstance(value, int | float | np.number | np.bool_) or isinstance(value, np.complexfloating):
        return None
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    with np.errstate(over="ignore"):
        single = float(np.float32(number))
    return _event(Summary.Value(tag=tag, simple_value=single), step, time)


def as_step(step: Any) -> int:
    """Convert a step to TensorBoard's int of 64 bits: fractions are rounded down, NaN and infinities become 0."""
    number = step if isinstance(step, int) else math.floor(step) if math.isfinite(step) else 0
    return max(-LAST_STEP, min(number, LAST_STEP))


def restart_event(step: int, time: float) -> bytes:
    """Return the event that makes TensorBoard drop the points that it has read from a step on."""
    return Event(wall_time=time, step=step, session_log=SessionLog(status=SessionLog.START)).SerializeToString()


def graph_event(graph: bytes, time: float) -> bytes:
    """Return the graph of a model as an event."""
    return Event(wall_time=time, graph_def=graph).SerializeToString()


def media_events(tag: str, entry: MediaEntry, content: Content) -> Iterator[bytes]:
    """Yield the events of a medium, two for points with colours, and for a table one more per image column.

    HTML and files that TensorBoard cannot show have none, nor has a damaged file, of which a warning tells.
    """
    mime = content.content_type.partition(";")[0]
    values_of = _BY_KIND.get(entry.kind) or _BY_TYPE.get(mime)
    try:
        values = [] if values_of is None else values_of(tag, content)
    except (ValueError, EOFError, wave.Error) as error:  # a damaged file of a user's own medium
        _log.warning("%s: TensorBoard cannot show this %s as %s: %s", entry.name, entry.kind, mime, error)
        return
    for value in values:
        yield _event(value, entry.step, entry.time)


def _event(value: Summary.Value, step: Any, time: float) -> bytes:
    return Event(wall_time=time, step=as_step(step), summary=Summary(value=[value])).SerializeToString()


def _image(tag: str, content: Content) -> list[Summary.Value]:
    """Return a PNG image, still or animated."""
    width, height = png_size(content.data)
    image = Summary.Image(
        width=width, height=height, colorspace=content.meta.get("channels", 4), encoded_image_string=content.data
    )
    return [Summary.Value(tag=tag, image=image)]


def _audio(tag: str, content: Content) -> list[Summary.Value]:
    with wave.open(io.BytesIO(content.data)) as file:
        rate, channels, length = file.getframerate(), file.getnchannels(), file.getnframes()
    audio = Summary.Audio(
        sample_rate=rate,
        num_channels=channels,
        length_frames=length,
        encoded_audio_string=content.data,
        content_type=content.content_type,
    )
    return [Summary.Value(tag=tag, audio=audio)]


def _point_cloud(tag: str, content: Content) -> list[Summary.Value]:
    """Return points and their colours for TensorBoard's mesh plugin."""
    stream = io.BytesIO(content.data)
    stride = -(-read_header(stream).num_points // _MAX_POINTS)
    stream.seek(0)
    points, colors = read_points(stream, stride)
    parts = [(MeshPluginData.VERTEX, DT_FLOAT, points)]
    parts += [] if colors is None else [(MeshPluginData.COLOR, DT_UINT8, colors)]
    components = mesh_metadata.get_components_bitmask([part for part, _, _ in parts])
    return [_mesh_part(tag, part, components, dtype, values) for part, dtype, values in parts]


def _mesh_part(tag: str, part: Any, components: int, dtype: Any, values: np.ndarray) -> Summary.Value:
    shape = (1, *values.shape)
    metadata = mesh_metadata.create_summary_metadata(tag, None, part, components, shape)
    tensor = TensorProto(dtype=dtype, tensor_shape=_shape(*shape), tensor_content=values.tobytes())
    return Summary.Value(tag=mesh_metadata.get_instance_name(tag, part), tensor=tensor, metadata=metadata)


def _histogram(tag: str, content: Content) -> list[Summary.Value]:
    return [Summary.Value(tag=tag, histo=_buckets(json.loads(content.data)))]


def _buckets(histogram: Mapping[str, Any]) -> HistogramProto:
    edges, counts, num = histogram["edges"], histogram["counts"], histogram["num"]
    if not counts:
        return HistogramProto(bucket_limit=[0.0], bucket=[0.0])
    # A bucket reaches from the previous limit to its own; an empty first one sets the start of the second.
    middles = (np.array(edges[:-1]) / 2 + np.array(edges[1:]) / 2).tolist()
    squares = sum(count * middle * middle for count, middle in zip(counts, middles, strict=True))
    low, high = (edges[0], edges[-1]) if histogram["min"] is None else (histogram["min"], histogram["max"])
    total = (histogram["mean"] or 0.0) * num
    return HistogramProto(
        min=low, max=high, num=num, sum=total, sum_squares=squares, bucket_limit=edges, bucket=[0.0, *counts]
    )


def _text(tag: str, data: bytes) -> Summary.Value:
    tensor = TensorProto(dtype=DT_STRING, tensor_shape=_shape(1), string_val=[data])
    return Summary.Value(tag=tag, tensor=tensor, metadata=text_metadata.create_summary_metadata(None, None))


def _shape(*sizes: int) -> TensorShapeProto:
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes])


def _table(tag: str, content: Content) -> list[Summary.Value]:
    """Return a table as Markdown, and the images of each column under a tag of their own."""
    table = json.loads(content.data)
    columns, by_file = table["columns"], {image.file: image for image in content.images}
    images: dict[str, list[Content]] = {}

    def shown(column: str, cell: Any) -> str:
        if isinstance(cell, dict) and "$image" in cell:
            images.setdefault(column, []).append(by_file[cell["$image"]])
            return f"{tag}/{column}, image {len(images[column])}"
        return _markdown("" if cell is None else str(cell["$number"] if isinstance(cell, dict) else cell))

    rows = [[shown(column, cell) for column, cell in zip(columns, row, strict=True)] for row in table["rows"]]
    lines = [f"| {' | '.join(row)} |" for row in (map(_markdown, columns), ["---"] * len(columns), *rows)]
    return [
        _text(tag, "\n".join(lines).encode()),
        *(_images(f"{tag}/{name}", all_of) for name, all_of in images.items()),
    ]


def _markdown(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _images(tag: str, images: list[Content]) -> Summary.Value:
    width, height = (str(max(image.meta[side] for image in images)).encode() for side in ("width", "height"))
    data = [width, height, *(image.data for image in images)]
    tensor = TensorProto(dtype=DT_STRING, tensor_shape=_shape(len(data)), string_val=data)
    return Summary.Value(tag=tag, tensor=tensor, metadata=image_metadata.create_summary_metadata(None, None))


# Kinds with a form of their own; the others are shown by the content type of their file.
_BY_KIND: dict[str, Callable[[str, Content], list[Summary.Value]]] = {
    "histogram": _histogram,
    "point_cloud": _point_cloud,
    "table": _table,
}
_BY_TYPE: dict[str, Callable[[str, Content], list[Summary.Value]]] = {
    "audio/wav": _audio,
    "image/png": _image,
    "text/plain": lambda tag, content: [_text(tag, content.data)],
}


def session_start(config: Mapping[str, Any], time: float) -> bytes:
    """Return the event with the hyper-parameters of a run: its config by dotted paths, without passwords."""
    info = SessionStartInfo(start_time_secs=time)
    for path, value in flattened(config):
        if isinstance(value, bool):
            info.hparams[path].bool_value = value
        elif isinstance(value, int | float):
            info.hparams[path].number_value = value
        else:
            info.hparams[path].string_value = hide_passwords(str(value))
    return _session(hparams_metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=info), time)


def session_end(completed: bool, time: float) -> bytes:
    """Return the event that ends a run, as completed or failed, in TensorBoard's table of hyper-parameters."""
    status = api_pb2.STATUS_SUCCESS if completed else api_pb2.STATUS_FAILURE
    info = SessionEndInfo(status=status, end_time_secs=time)
    return _session(hparams_metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=info), time)


def _session(tag: str, data: HParamsPluginData, time: float) -> bytes:
    metadata = hparams_metadata.create_summary_metadata(data)
    return _event(Summary.Value(tag=tag, metadata=metadata, tensor=hparams_metadata.NULL_TENSOR), 0, time)
