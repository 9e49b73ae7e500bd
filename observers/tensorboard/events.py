"""Events of observers as protocol buffers for TensorBoard; loaded only with the extra `tensorboard`."""

from __future__ import annotations

import io
import json
import logging
import math
import wave
from collections.abc import Callable, Iterator, Mapping
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
from sacristan.observers.media.pixels import png_size
from sacristan.observers.media.ply import read_header, read_points
from sacristan.observers.record.media_files import Content, MediaEntry
from sacristan.observers.record.redaction import hide_passwords

__all__ = [
    "LAST_STEP",
    "as_step",
    "file_version",
    "graph_event",
    "media_events",
    "restart",
    "scalar_event",
    "session_end",
    "session_start",
]

_log = logging.getLogger(__name__)

# The greatest step of TensorBoard.
LAST_STEP = 2**63 - 1
# Larger point clouds are thinned to every second point, every third, and so on.
_MAX_POINTS = 100_000


def file_version(time: float) -> bytes:
    """Return the event that opens an event file."""
    return Event(wall_time=time, file_version="brain.Event:2").SerializeToString()


def scalar_event(tag: str, value: Any, step: Any, time: float) -> bytes | None:
    """Return a point of a metric as a 32-bit TensorBoard event; None if the value is not a real number.

    Integers beyond the range of floats become infinite.
    """
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


def restart(step: int, time: float) -> bytes:
    """Return the event that makes TensorBoard drop the points that it has read from a step on."""
    return Event(wall_time=time, step=step, session_log=SessionLog(status=SessionLog.START)).SerializeToString()


def graph_event(graph: bytes, time: float) -> bytes:
    """Return the graph of a model as an event."""
    return Event(wall_time=time, graph_def=graph).SerializeToString()


def media_events(tag: str, entry: MediaEntry, content: Content) -> Iterator[bytes]:
    """Yield the events of a medium: one, but two for points with colours, and for a table one more per image column.

    Media that TensorBoard cannot show have none: HTML, videos that are not animated images, other content types. A
    warning names a medium whose file is damaged.
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
